"""From wishes and what is up to an assignment: asks the policies, and insists on what they cannot know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

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
    """One router's view. routing: makes a policy for a pool; batch_limit: sessions a verifier's step takes.

    Every pool has a routing policy of its own: one that takes turns would otherwise give a request's
    verifier and its drafter alternate turns, and all requests the same verifier.
    A snapshot's loads are old by the time a burst arrives, so what was assigned since counts as well.
    """

    def __init__(
        self, collaboration: CollaborationPolicy, routing: Callable[[], RoutingPolicy], batch_limit: int
    ) -> None:
        self._collaboration, self._batch_limit = collaboration, batch_limit
        self._routing = {pool: routing() for pool in POOLS}
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
                device = self._device(chosen.device, translated=True)
                return self._count(Assignment("device", device, device=device.name))
            case "speculative" if chosen.device is not None:
                target, drafter = self._pick(VERIFIER, lost), self._device(chosen.device)
                return self._count(
                    Assignment(
                        "speculative",
                        target,
                        drafter,
                        device=drafter.name,
                        queue=self._queue(target),
                        fused=self._pick_if_up(DRAFTER, wishes.lost),
                        batch_limit=self._batch_limit,
                    )
                )
            case "speculative":
                target, drafter = self._pick(VERIFIER, lost), self._pick(DRAFTER, lost)
                return self._count(Assignment("speculative", target, drafter, queue=self._queue(target)))
            case "race":
                target = self._pick_if_up(VERIFIER, lost)
                rival = self._device(chosen.device, translated=True)
                if target is None:  # nobody to race with
                    return self._count(Assignment("device", rival, device=rival.name))
                return self._count(Assignment("race", target, device=rival.name, rival=rival))
            case _:
                return self._count(Assignment("cloud", self._pick(VERIFIER, lost)))

    def _choose(self, wishes: Wishes) -> Collaboration:
        if wishes.mode is not None and wishes.mode not in MODES:
            raise UnknownMode(f"mode {wishes.mode!r} is not one of {', '.join(MODES)}")
        # A request with a device goes on without the cloud's drafter; without its only helper, the cloud does.
        dispensable = POOLS if wishes.device is not None else (VERIFIER,)
        if any(key.partition("@")[0] not in dispensable for key in wishes.lost):
            return Collaboration("cloud", None)
        named = (wishes.device,) if isinstance(wishes.device, str) else wishes.device
        if named and not any(name in (ANY_DEVICE, *self._snapshot.devices) for name in named):
            raise NoSuchDevice(f"no device {' or '.join(map(repr, named))} is registered")
        return self._collaboration.choose(
            CollaborationState(
                mode=wishes.mode,
                device=wishes.device,
                verifiers=len(self._snapshot.pools.get(VERIFIER, ())),
                drafters=len(self._snapshot.pools.get(DRAFTER, ())),
                devices=[
                    DeviceView(d.name, d.rtt_s, self._load(EndpointInfo.of(d)), d.prefill_token_s)
                    for d in self._snapshot.devices.values()
                ],
            )
        )

    def _pick(self, pool: str, lost: Sequence[str]) -> EndpointInfo:
        if (chosen := self._pick_if_up(pool, lost)) is None:
            raise NoEndpoint(f"no {pool} is up")
        return chosen

    def _pick_if_up(self, pool: str, lost: Sequence[str]) -> EndpointInfo | None:
        up = [e for e in self._snapshot.pools.get(pool, ()) if e.key not in lost]
        return up[self._routing[pool].choose([self._load(e) for e in up])] if up else None

    def _device(self, name: str | None, translated: bool = False) -> EndpointInfo:
        """translated: another vocabulary is no obstacle."""
        device = self._snapshot.devices.get(name or "")
        if device is None:
            raise NoSuchDevice(
                "no device is registered" if name in (None, ANY_DEVICE) else f"no device {name!r}"
            )
        for verifier in self._snapshot.pools.get(VERIFIER, ()):
            if device.vocabulary != verifier.vocabulary and not translated:
                raise InvalidRequest(f"device {name!r} has another vocabulary than {verifier.model!r}")
        return EndpointInfo.of(device)

    def _load(self, endpoint: EndpointInfo) -> int:
        return endpoint.sessions + self._assigned[endpoint.key]

    def _queue(self, target: EndpointInfo) -> float:
        return self._load(target) / self._batch_limit

    def _count(self, assignment: Assignment) -> Assignment:
        for endpoint in (assignment.target, assignment.drafter, assignment.fused, assignment.rival):
            if endpoint is not None:
                self._assigned[endpoint.key] += 1
        return assignment
