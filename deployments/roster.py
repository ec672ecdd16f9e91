"""The roster: which endpoints are up. Pure bookkeeping behind the scheduler; it has no clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.registry import DeviceRecord, DeviceRegistry
from deployments.assignment import EndpointInfo


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is up. version grows with every change of membership or load.

    pools: replicas by pool name; devices: by device name.
    """

    version: int = 0
    pools: Mapping[str, tuple[EndpointInfo, ...]] = field(default_factory=dict)
    devices: Mapping[str, DeviceRecord] = field(default_factory=dict)


class Roster:
    """Replicas as last listed, and devices as their hosts last registered them.

    expiry_s: a device that has not registered for so long is not there.
    """

    def __init__(self, expiry_s: float) -> None:
        self._registry = DeviceRegistry(expiry_s)
        self._pools: dict[str, tuple[EndpointInfo, ...]] = {}
        self._snapshot = Snapshot()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def register(self, records: Iterable[DeviceRecord], now_s: float) -> bool:
        """Devices announce themselves, or that they are still there; says whether that is news."""
        self._registry.register(records, now_s)
        return self.update(now_s)

    def lost(self, address: str, now_s: float) -> bool:
        """Forget the devices at an address, until they register again; says whether that is news."""
        self._registry.lost(address)
        return self.update(now_s)

    def list_pool(self, pool: str, replicas: Iterable[EndpointInfo]) -> None:
        """Replace what is known of a pool, from the next update on."""
        self._pools[pool] = tuple(sorted(replicas, key=lambda replica: replica.address))

    def update(self, now_s: float) -> bool:
        """Make a new snapshot if anything differs from the last one; says whether it does."""
        devices = {record.name: record for record in self._registry.present(now_s)}
        if (self._pools, devices) == (self._snapshot.pools, self._snapshot.devices):
            return False
        self._snapshot = Snapshot(self._snapshot.version + 1, dict(self._pools), devices)
        return True
