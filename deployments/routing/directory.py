"""The directory: which endpoints are up. Pure bookkeeping behind the scheduler; it has no clock of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.pools import MIDDLE, POOLS, pool_name
from tandem.engine.base import SplitInfo

REMEMBERED = 65_536
"""Changes of devices that a snapshot can tell apart from older ones."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Endpoints that are up, or that have changed since another snapshot.

    version: grows with every change of membership or load.
    pools: replicas by pool name (`pool_name`), always all of them.
    devices: by device name; those that have come or changed since.
    gone: names of devices that have gone since.
    since: the version that this is the difference to; None: it is whole.
    awaited: names of devices that should be there and are not, always all of them.
    """

    version: int = 0
    pools: Mapping[str, tuple[EndpointInfo, ...]] = field(default_factory=dict)
    devices: Mapping[str, DeviceRecord] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    since: int | None = None
    awaited: frozenset[str] = frozenset()

    @property
    def middles(self) -> tuple[SplitInfo, ...]:
        """Kinds of middles that are up."""
        return tuple(dict.fromkeys(e.split for e in self.pools.get(MIDDLE, ()) if e.split is not None))

    def replaces(self, endpoint: EndpointInfo) -> bool:
        """Return whether another replica can go on with an answer that one has begun."""
        return not endpoint.device and any(
            e.continues and (e.engine, e.model, e.split) == (endpoint.engine, endpoint.model, endpoint.split)
            for pool in self.pools.values()
            for e in pool
            if e.key != endpoint.key
        )

    def of(self, model: str, suffix: str = "") -> Snapshot:
        """Return a model's part: its pools, by their names without its suffix, and the devices that serve it."""
        pools = {pool: self.pools[name] for pool in POOLS if (name := pool_name(pool, suffix)) in self.pools}
        others = [
            name for name, device in self.devices.items() if device.serves and model not in device.serves
        ]
        if not others:
            return replace(self, pools=pools)
        devices = {name: device for name, device in self.devices.items() if name not in others}
        return replace(self, pools=pools, devices=devices, gone=(*self.gone, *others))


class Directory:
    """Replicas as last listed, and devices as their hosts last registered them. Whatever is done to it costs as much
    as it changes, not as much as there is.

    expiry_s: silence after which a device is unlisted.
    version: that it begins with; those that know another directory's are told everything.
    """

    def __init__(self, expiry_s: float, version: int = 0) -> None:
        self._expected: frozenset[str] = frozenset()
        self._awaited: frozenset[str] = frozenset()
        self._expiry_s, self._first, self.version = expiry_s, version, version
        self._pools: dict[str, tuple[EndpointInfo, ...]] = {}
        self._devices: dict[str, DeviceRecord] = {}
        self._heard_s: OrderedDict[str, float] = OrderedDict()  # the one that was silent for longest first
        self._changed: OrderedDict[str, int] = OrderedDict()  # device → version, oldest first
        self._news = False

    @property
    def snapshot(self) -> Snapshot:
        """Return everything that is up."""
        return Snapshot(self.version, dict(self._pools), dict(self._devices), awaited=self._awaited)

    def count(self, pool: str) -> int:
        """Replicas of a pool, as last listed."""
        return len(self._pools.get(pool, ()))

    def addresses(self, pool: str) -> frozenset[str]:
        """Return the addresses of a pool's replicas, as last listed."""
        return frozenset(replica.address for replica in self._pools.get(pool, ()))

    def expect(self, devices: Iterable[str]) -> None:
        """Set the devices that are expected to come back when they go, from the next update on."""
        self._expected = frozenset(devices)
        self._awaited = self._expected - self._devices.keys()
        self._news = True

    def since(self, version: int) -> Snapshot:
        """Return the changes since that version; everything that is up if it is unknown."""
        if not self._first < version <= self.version:
            return self.snapshot
        devices, gone = {}, []
        for name in reversed(self._changed):
            if self._changed[name] <= version:
                break
            if (record := self._devices.get(name)) is None:
                gone.append(name)
            else:
                devices[name] = record
        return Snapshot(self.version, dict(self._pools), devices, tuple(gone), version, self._awaited)

    def register(self, records: Iterable[DeviceRecord], now_s: float) -> bool:
        """Devices announce themselves, or that they are still there; says whether that is news. A name of the settings'
        own devices is theirs."""
        for record in records:
            if record.dialled_in and (record.name in self._expected or self.is_elsewhere(record)):
                continue
            self._heard_s[record.name] = now_s
            self._heard_s.move_to_end(record.name)
            if record.name in self._awaited:
                self._awaited -= {record.name}
            if self._devices.get(record.name) != record:
                self._devices[record.name] = record
                self._note(record.name)
        return self.update(now_s)

    def is_elsewhere(self, record: DeviceRecord) -> bool:
        """Return whether a device has dialled another gateway since."""
        known = self._devices.get(record.name)
        if known is None or not (known.dialled_in and record.dialled_in) or known.address == record.address:
            return False
        return known.dialled_s > record.dialled_s

    def lost(self, name: str, address: str, now_s: float) -> bool:
        """Forget a device, and with it the others of its host, until they register again; says whether that is
        news."""
        known = self._devices.get(name)
        if known is not None and known.address == address and known.dialled_in:
            self._forget(name)
        else:
            hosted = [(each, record) for each, record in self._devices.items() if not record.dialled_in]
            for each in [each for each, record in hosted if record.address == address]:
                self._forget(each)
        return self.update(now_s)

    def list_pool(self, pool: str, replicas: Iterable[EndpointInfo]) -> None:
        """Replace what is known of a pool, from the next update on."""
        listed = tuple(sorted(replicas, key=lambda replica: replica.address))
        if self._pools.get(pool) != listed:
            self._news = True
        self._pools[pool] = listed  # also if equal: loads, which are not compared, go with the next snapshot

    def update(self, now_s: float) -> bool:
        """Begin a new version if anything differs from the last one; says whether it does."""
        while self._heard_s:
            name, heard_s = next(iter(self._heard_s.items()))
            if now_s - heard_s <= self._expiry_s:
                break
            self._forget(name)
        news, self._news = self._news, False
        self.version += news
        return news

    def _forget(self, name: str) -> None:
        del self._devices[name], self._heard_s[name]
        if name in self._expected:
            self._awaited |= {name}
        self._note(name)

    def _note(self, name: str) -> None:
        """Note that the device has changed, with the version that the next update begins."""
        self._news = True
        self._changed[name] = self.version + 1
        self._changed.move_to_end(name)
        if len(self._changed) > REMEMBERED + len(self._devices):
            self._first = max(self._first, self._changed.popitem(last=False)[1])
