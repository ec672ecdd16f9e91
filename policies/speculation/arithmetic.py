"""The arithmetic of speculative decoding (Leviathan et al. 2023).

alpha: probability that a drafted token is accepted, given that those before it were.
gamma: window, tokens.
"""

from __future__ import annotations

MAX_WINDOW = 12
FIRST_ALPHA = 2 / 3
"""Acceptance before any round."""


def expected_tokens(alpha: float, gamma: int) -> float:
    """Return the expected tokens of a round: the target's own, and α + α² + … + α^γ accepted drafts."""
    accepted, power = 0.0, 1.0
    for _ in range(gamma):
        power *= alpha
        accepted += power
    return 1.0 + accepted
