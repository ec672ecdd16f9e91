"""Names of the pools of replicas that endpoints are taken from."""

from __future__ import annotations

VERIFIER, DRAFTER, EXPANDER, MIDDLE = "verifier", "drafter", "expander", "middle"
POOLS = (VERIFIER, DRAFTER, EXPANDER, MIDDLE)
DEVICE = "device"
"""Stands in place of a pool's name for the device that takes part."""


def pool_name(pool: str, suffix: str = "") -> str:
    """Return a pool's name among those of all models. suffix: of the model's pools; "" for those of the first one."""
    return f"{pool}-{suffix}" if suffix else pool
