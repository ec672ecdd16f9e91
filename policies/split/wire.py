"""Wire: the number format in which a device sends its hidden states up.

Fewer bytes are sooner there, and the model says another token now and then. So the link decides, among the formats
whose loss was measured to be small on the very model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

QUICK_S = 1e-4
"""Seconds of a token's upload below which fewer bytes bring nothing worth a loss."""
LEAST_KEPT = 0.995
"""Least share of next tokens that a format keeps."""


class WireFormat(NamedTuple):
    """A number format.

    name: of the format.
    token_bytes: bytes of a token's hidden states.
    kept: measured share of next tokens that are what they are with exact states.
    """

    name: str
    token_bytes: float
    kept: float


def choose_format(formats: Sequence[WireFormat], up_bytes_s: float, least_kept: float = LEAST_KEPT) -> str:
    """Return the name of the most exact format that the link carries in QUICK_S a token, otherwise of the smallest;
    of those that keep `least_kept`, of which there is one.

    formats: the most exact first.
    """
    fit = [one for one in formats if one.kept >= least_kept]
    quick = [one for one in fit if one.token_bytes <= QUICK_S * up_bytes_s]
    return quick[0].name if quick else min(fit, key=lambda one: one.token_bytes).name
