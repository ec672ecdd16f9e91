"""From wishes and what is up to an assignment: asks the policies, and insists on what they cannot know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from deployments.assignment import Assignment, EndpointInfo, NoEndpoint, Wishes
from deployments.job import NoSuchDevice, UnknownMode
from deployments.roster import Snapshot
from engine.base import InvalidRequest
from policies.collaboration import (
    ANY_DEVICE,
    MODES,
    Collaboration,
    CollaborationPolicy,
    CollaborationState,
    DeviceView,
)
from policies.routing import RoutingPolicy

VERIFIER, DRAFTER, EXPANDER = "verifier", "drafter", "expander"
POOLS = (VERIFIER, DRAFTER, EXPANDER)


class Assigner:
    """One router's view. batch_limit: sessions a verifier works on at once.

    A snapshot's loads are old by the time a burst arrives, so what was assigned since counts as well.
    """

    def __init__(self, collaboration: CollaborationPolicy, routing: RoutingPolicy, batch_limit: int) -> None:
        self._collaboration, self._routing, self._batch_limit = collaboration, routing, batch_limit
        self._snapshot = Snapshot()
        self._assigned: Counter[str] = Counter()

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    def see(self, snapshot: Snapshot) -> None:
        """Take over a new snapshot."""
        self._snapshot = snapshot
        self._assigned.clear()

    def assign(self, wishes: Wishes, retry_lost: bool = False) -> Assignment:
        """Choose mode and endpoints. retry_lost: endpoints that failed the request may be tried again.

        Raises UnknownMode, NoSuchDevice, InvalidRequest, and NoEndpoint where what is needed is not up
        (it may come: ask again with the next snapshot).
        """
        lost = () if retry_lost else wishes.lost
        chosen = self._choose(wishes)
        match chosen.mode:
            case "device":
                device = self._device(chosen.device)
                return self._count(Assignment("device", device, device=device.name))
            case "speculative" if chosen.device is not None:
                target, drafter = self._pick(VERIFIER, lost), self._device(chosen.device)
                fused = self._pick(DRAFTER, lost) if self._snapshot.pools.get(DRAFTER) else None
                return self._count(
                    Assignment(
                        "speculative",
                        target,
                        drafter,
                        device=drafter.name,
                        queue=self._queue(target),
                        fused=fused,
                        batch_limit=self._batch_limit,
                    )
                )
            case "speculative":
                target, drafter = self._pick(VERIFIER, lost), self._pick(DRAFTER, lost)
                return self._count(Assignment("speculative", target, drafter, queue=self._queue(target)))
            case _:
                return self._count(Assignment("cloud", self._pick(VERIFIER, lost)))

    def _choose(self, wishes: Wishes) -> Collaboration:
        if wishes.mode is not None and wishes.mode not in MODES:
            raise UnknownMode(f"mode {wishes.mode!r} is not one of {', '.join(MODES)}")
        if any(not key.startswith(f"{VERIFIER}@") for key in wishes.lost):
            return Collaboration("cloud", None)  # the helper is gone: the cloud goes on alone
        if wishes.device not in (None, ANY_DEVICE, *self._snapshot.devices):
            raise NoSuchDevice(f"no device {wishes.device!r} is registered")
        return self._collaboration.choose(
            CollaborationState(
                mode=wishes.mode,
                device=wishes.device,
                verifiers=len(self._snapshot.pools.get(VERIFIER, ())),
                drafters=len(self._snapshot.pools.get(DRAFTER, ())),
                devices=[
                    DeviceView(d.name, d.rtt_s, self._load(EndpointInfo.of(d)))
                    for d in self._snapshot.devices.values()
                ],
            )
        )

    def _pick(self, pool: str, lost: Sequence[str]) -> EndpointInfo:
        up = [e for e in self._snapshot.pools.get(pool, ()) if e.key not in lost]
        if not up:
            raise NoEndpoint(f"no {pool} is up")
        return up[self._routing.choose([self._load(e) for e in up])]

    def _device(self, name: str | None) -> EndpointInfo:
        device = self._snapshot.devices.get(name or "")
        if device is None:
            raise NoSuchDevice(
                "no device is registered" if name in (None, ANY_DEVICE) else f"no device {name!r}"
            )
        for verifier in self._snapshot.pools.get(VERIFIER, ()):
            if device.vocabulary != verifier.vocabulary:
                raise InvalidRequest(f"device {name!r} has another vocabulary than {verifier.model!r}")
        return EndpointInfo.of(device)

    def _load(self, endpoint: EndpointInfo) -> int:
        return endpoint.sessions + self._assigned[endpoint.key]

    def _queue(self, target: EndpointInfo) -> float:
        return min(1.0, self._load(target) / self._batch_limit)

    def _count(self, assignment: Assignment) -> Assignment:
        for endpoint in (assignment.target, assignment.drafter):
            if endpoint is not None:
                self._assigned[endpoint.key] += 1
        return assignment
