"""The devices that a router knows, in the order in which its policy prefers them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.routing.collaboration import DeviceView, Preference


class DeviceIndex:
    """Finds the best device in the same time for many as for few: a heap, whose outdated entries are left until they
    come to its top.

    preference: what devices are compared by; the least is the best.
    """

    def __init__(self, preference: Callable[[DeviceView], Preference]) -> None:
        self._preference = preference
        self._records: dict[str, DeviceRecord] = {}
        # When sessions were assigned that the records do not know of yet: by device, and of all.
        self._assigned: dict[str, deque[float]] = {}
        self._assignments: deque[tuple[float, str]] = deque()
        self._endpoints: dict[str, EndpointInfo] = {}  # of those that were asked for since their last news
        self._keys: dict[str, Preference] = {}
        self._heap: list[tuple[Preference, str]] = []

    @property
    def records(self) -> Mapping[str, DeviceRecord]:
        """Records by name."""
        return self._records

    def replace(self, records: Mapping[str, DeviceRecord]) -> None:
        """Replace all records."""
        self._assigned.clear()
        self._assignments.clear()
        self._records, self._keys = dict(records), {}
        self._endpoints.clear()
        for name in records:
            self._keys[name] = self._preference(self._view(name))
        self._rebuild()

    def change(self, records: Mapping[str, DeviceRecord], gone: Iterable[str]) -> None:
        """Update records that have come or changed, which include their assignments so far, and drop those that have
        gone."""
        for name in gone:
            self._records.pop(name, None)
            self._keys.pop(name, None)
            self._assigned.pop(name, None)
            self._endpoints.pop(name, None)
        self._records.update(records)
        for name in records:
            self._assigned.pop(name, None)
            self._endpoints.pop(name, None)
            self._place(name)

    def assigned(self, name: str, now_s: float) -> None:
        """Count one more session, which the device is about to work on."""
        if name in self._records:
            self._assigned.setdefault(name, deque()).append(now_s)
            self._assignments.append((now_s, name))
            self._place(name)

    def forget_assigned(self, until_s: float) -> None:
        """Drop assignments from before `until_s`, which are known by now or were never opened."""
        while self._assignments and self._assignments[0][0] < until_s:
            assigned_s, name = self._assignments.popleft()
            times_s = self._assigned.get(name)
            if times_s and times_s[0] <= assigned_s:  # otherwise there was news of the device meanwhile
                times_s.popleft()
                self._place(name)

    def sessions(self, name: str) -> int:
        """Return a device's sessions, as far as is known here."""
        return self._records[name].sessions + len(self._assigned.get(name, ()))

    def load(self, name: str) -> int:
        """Return the same; none of a device that has gone."""
        record = self._records.get(name)
        if record is None:
            return 0
        times_s = self._assigned.get(name)
        return record.sessions + len(times_s) if times_s else record.sessions

    def endpoint(self, name: str) -> EndpointInfo:
        """Return a device's endpoint, with the model that it has loaded."""
        found = self._endpoints.get(name)
        if found is None:
            found = self._endpoints[name] = EndpointInfo.of(self._records[name])
        return found

    def has_room(self, name: str) -> bool:
        """Return whether a device can take one more session, as far as is known here."""
        return self.sessions(name) < self._records[name].capacity

    def best(self, among: Sequence[str] | None = None) -> DeviceView | None:
        """Return the best of the named devices, or of all; None if none of them is there."""
        if among is not None:
            there = [name for name in among if name in self._keys]
            return self._view(min(there, key=self._keys.__getitem__)) if there else None
        heap, keys = self._heap, self._keys
        while heap and keys.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return self._view(heap[0][1]) if heap else None

    def few(self, count: int, among: Sequence[str] | None = None) -> list[str]:
        """Return the names of the best of the named devices, or of all, the best first."""
        if among is not None:
            there = [name for name in among if name in self._keys]
            return heapq.nsmallest(count, there, key=self._keys.__getitem__)
        taken: list[tuple[Preference, str]] = []
        heap, keys = self._heap, self._keys
        while heap and len(taken) < count:
            entry = heapq.heappop(heap)
            if keys.get(entry[1]) == entry[0] and entry not in taken:
                taken.append(entry)
        for entry in taken:
            heapq.heappush(heap, entry)
        return [name for _, name in taken]

    def _view(self, name: str) -> DeviceView:
        record, sessions = self._records[name], self.sessions(name)
        return DeviceView(
            name,
            record.rtt_s,
            sessions,
            record.prefill_token_s,
            record.decode_token_s,
            full=not self.has_room(name),
        )

    def _place(self, name: str) -> None:
        key = self._preference(self._view(name))
        if self._keys.get(name) != key:
            self._keys[name] = key
            heapq.heappush(self._heap, (key, name))
            if len(self._heap) > 64 + 4 * len(self._keys):
                self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(key, name) for name, key in self._keys.items()]
        heapq.heapify(self._heap)
