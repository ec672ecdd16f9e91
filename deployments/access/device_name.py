"""Names of devices: requests name a device in the same field as other values, so a name must not mean anything
else."""

from __future__ import annotations

import re

from tandem.deployments.request.pools import POOLS
from tandem.policies.routing.collaboration import ANY_DEVICE

PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


def device_name(name: str) -> str:
    """The name, if a device may have it. Raises ValueError."""
    if re.fullmatch(PATTERN, name) is None:
        raise ValueError(
            f"{name!r} cannot name a device: at most 64 letters, digits, '.', '_' and '-', of which the first is a "
            "letter or a digit"
        )
    if name in (*POOLS, ANY_DEVICE):
        raise ValueError(f"{name!r} has a meaning of its own; call the device something else")
    return name
