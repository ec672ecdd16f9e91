"""Names of the pools of replicas that endpoints are taken from."""

from __future__ import annotations

VERIFIER, DRAFTER, EXPANDER, MIDDLE = "verifier", "drafter", "expander", "middle"
POOLS = (VERIFIER, DRAFTER, EXPANDER, MIDDLE)
DEVICE = "device"
"""In place of a pool: the device that takes part."""
