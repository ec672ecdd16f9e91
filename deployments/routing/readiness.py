"""Readiness: which of the modes that an application is set up for can serve now, and what the others lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import EndpointRole, Mode
from tandem.deployments.request.pools import DEVICE, pool_name
from tandem.deployments.routing.directory import Snapshot

NO_DEVICE = "no device is up"


@dataclass(frozen=True, slots=True)
class Planned:
    """Endpoints that a model's settings ask for.

    suffix: of its pools.
    pools: whether each of them may be empty, by name without the suffix.
    devices: whether there are devices at times.
    elsewhere: names of the devices that help other models.
    """

    suffix: str
    pools: Mapping[str, bool]
    devices: bool
    elsewhere: frozenset[str] = frozenset()


def lacks(planned: Planned, snapshot: Snapshot, model: str) -> dict[str, str]:
    """Return what each of the model's modes lacks, by name; "" if it can serve. Modes without their pools are missing.

    Devices that dial in come and go: only where some are awaited do modes lack them.
    """
    there = snapshot.of(model, planned.suffix)
    found = {name: _lack(mode, planned, there) for name, mode in MODES.items()}
    return {name: lack for name, lack in found.items() if lack is not None}


def empty(planned: Planned, snapshot: Snapshot) -> list[str]:
    """Return the names of the model's pools that have no replica and should."""
    names = [
        pool_name(pool, planned.suffix) for pool, may_be_empty in planned.pools.items() if not may_be_empty
    ]
    return [name for name in names if not snapshot.pools.get(name)]


def _lack(mode: type[Mode], planned: Planned, there: Snapshot) -> str | None:
    roles = {role.name: role for role in mode.roles}
    for role in mode.roles:
        if not role.needed:
            continue
        either = [role, roles[role.unless]] if role.unless else [role]
        either = [each for each in either if _planned(each, planned)]
        if not either:
            return None
        if not any(_is_up(each, planned, there) for each in either):
            return _absence(either[0], planned)
    return ""


def _planned(role: EndpointRole, planned: Planned) -> bool:
    return planned.devices if role.pool == DEVICE else role.pool in planned.pools


def _is_up(role: EndpointRole, planned: Planned, there: Snapshot) -> bool:
    if role.pool == DEVICE:
        return bool(there.devices) or not there.awaited - planned.elsewhere
    return planned.pools[role.pool] or bool(there.pools.get(role.pool))


def _absence(role: EndpointRole, planned: Planned) -> str:
    return NO_DEVICE if role.pool == DEVICE else f"no {pool_name(role.pool, planned.suffix)} is up"
