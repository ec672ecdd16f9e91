"""The arithmetic of speculative decoding (Leviathan et al. 2023), with a link between drafter and target.

alpha: probability that a drafted token is accepted, given that those before it were.
gamma: window, tokens.
"""

from __future__ import annotations

MAX_WINDOW = 12


def expected_accepted(alpha: float, gamma: int) -> float:
    """Drafted tokens that are accepted in a round: α + α² + … + α^γ."""
    accepted, power = 0.0, 1.0
    for _ in range(gamma):
        power *= alpha
        accepted += power
    return accepted


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens that a round adds to the output, the target's own included: (1 − α^(γ+1)) / (1 − α)."""
    return 1.0 + expected_accepted(alpha, gamma)


def token_s(alpha: float, gamma: int, draft_s: float, rtt_s: float, verify_s: float) -> float:
    """Seconds per output token of rounds that draft γ tokens, cross the link and back, and verify."""
    return (gamma * draft_s + rtt_s + verify_s) / expected_tokens(alpha, gamma)


def best_window(
    alpha: float, draft_s: float, rtt_s: float, verify_s: float, most: int = MAX_WINDOW
) -> tuple[int, float]:
    """(γ in 2 … most with the least time per token, that time in seconds)."""
    tokens = 1.0 + alpha
    power, round_s = alpha, draft_s + rtt_s + verify_s
    best, best_s = 2, float("inf")
    for gamma in range(2, most + 1):
        power *= alpha
        tokens += power
        round_s += draft_s
        if round_s / tokens < best_s:
            best, best_s = gamma, round_s / tokens
    return best, best_s
