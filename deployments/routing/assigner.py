"""Assigns endpoints to requests: asks the policies, and enforces constraints."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf
from typing import NoReturn, Protocol

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes import MODES
from tandem.deployments.modes.base import EndpointRole, Mode
from tandem.deployments.request.assignment import (
    Assignment,
    EndpointInfo,
    Endpoints,
    NoEndpoint,
    Present,
    RoutingRequest,
)
from tandem.deployments.request.forecast import Forecast
from tandem.deployments.request.job import LimitsNotKept, NoSuchDevice, UnknownMode
from tandem.deployments.request.pools import DEVICE, POOLS
from tandem.deployments.routing.device_index import DeviceIndex
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.forecaster import Predicted, Way
from tandem.engine.base import EngineError, EngineStopped, NoCapacity
from tandem.engine.split.base import SplitMismatch, misfit
from tandem.policies.cost import PerToken
from tandem.policies.routing.collaboration import (
    ANY_DEVICE,
    Candidates,
    Collaboration,
    CollaborationPolicy,
    CollaborationState,
    DevicePart,
    NothingAllowed,
    NothingUp,
    Reason,
)
from tandem.policies.routing.objectives import Candidate, Objective, Prediction
from tandem.policies.routing.replica import ReplicaView, RoutingPolicy

FIRST_S = 2.0
"""Seconds for which an endpoint that refused a half-finished answer stays reserved for such answers, which retry every
second."""


ASSIGNED_S = 2.0
"""Seconds until a session that was opened is known of: devices register every second; replicas are asked as often."""


RETRY_LOST_S = 3.0
"""Time after which a request may use an endpoint again that has failed it, if that is still listed."""
AWAY_S = 1.0
"""Time after which a request that names a device which has just left goes on without it, as after its loss."""
LATELY_S = 60.0
"""Time since it has left in which a device counts as away for a moment, and not as unknown."""
FULL_S = 1.0
"""Seconds after which it is worth asking again for a device where all are full."""
KEPT = 4096
"""Replicas whose prompts are counted, and devices that are known to have left."""
COMPARED = 2
"""Devices with which modes are compared, the ones that the policy prefers."""
NEAR = 1.5
"""Ratio to the least loss up to which a mode with the first of them is also compared with the others."""


class Forecasting(Protocol):
    """Forecasts answers for policies that compare them."""

    def begin(self) -> None: ...

    def predict(self, mode: str, wanted: RoutingRequest, endpoints: Endpoints) -> Predicted | None: ...

    def staying(self, wanted: RoutingRequest, present: Present) -> Prediction | None: ...

    def forecast(
        self, way: Way, predicted: Predicted, wanted: RoutingRequest, reason: Reason
    ) -> Forecast: ...


class Ways:
    """Ways to answer one request: their endpoints and predictions, by mode and device.

    losses: of those found, in the objective that counts; infinite where a limit is exceeded.
    replicas: that routing policies have picked for the request, by role's kind, so that no policy is asked twice.
    devices: their endpoints, by name.
    full: whether a device was left out that has no room.
    """

    __slots__ = ("devices", "found", "full", "losses", "replicas")

    def __init__(self) -> None:
        self.found: dict[tuple[str, str | None], tuple[Endpoints, Predicted]] = {}
        self.losses: list[float] = []
        self.replicas: dict[tuple[str, bool], EndpointInfo | None] = {}
        self.devices: dict[str, EndpointInfo] = {}
        self.full = False


class Assigner:
    """Assigns endpoints at one router.

    routing: makes a policy for a pool.
    batch_limit: sessions in a verifier's step.
    price: the model's own, dollars per token, of replicas without one; None: the usual one.
    usual_price: of models without their own; the application's, which may change.
    missed: by pool, requests that went on without it as it was empty.
    forecaster: of answers, for policies that compare them; None: nothing is known.

    Every pool has a routing policy of its own: one that takes turns would otherwise give a request's verifier and its
    drafter alternate turns, and all requests the same verifier. A snapshot's loads are old by the time a burst
    arrives, so assignments since then count as well. An assignment takes constant time in the number of devices.
    """

    def __init__(
        self,
        collaboration: CollaborationPolicy,
        routing: Callable[[], RoutingPolicy],
        batch_limit: int,
        price: PerToken | None = None,
    ) -> None:
        self._collaboration, self.batch_limit, self.price = collaboration, batch_limit, price
        self.usual_price = PerToken(0.0, 0.0)
        self._new_routing, self._routing = routing, dict[str, RoutingPolicy]()
        self.missed = Counter[str]()
        self.forecaster: Forecasting | None = None
        self._version = 0
        self._pools: dict[str, tuple[EndpointInfo, ...]] = {}
        self._devices = DeviceIndex(collaboration.preference)
        self._awaited: frozenset[str] = frozenset()  # devices that should be there and are not
        self._left: LRUTable[str, float] = LRUTable(KEPT)  # when devices have left
        self._last_left_s = -inf
        self._assigned: Counter[str] = Counter()  # sessions at replicas, by key, since they were last listed
        self._prompts: LRUTable[str, tuple[float, float]] = LRUTable(KEPT)  # pending tokens, and at what time
        self._now_s = 0.0
        self._assignments = deque[tuple[float, str]]()  # when each of them was assigned
        self._vacated = frozenset[str]()  # endpoints that the answer would leave which is looked at anew
        self._kept_until_s: dict[str, float] = {}  # endpoints that begun answers found full, by key

    @property
    def version(self) -> int:
        """Version of the last snapshot."""
        return self._version

    @property
    def snapshot(self) -> Snapshot:
        """Snapshot of all endpoints that are up."""
        return Snapshot(self._version, dict(self._pools), dict(self._devices.records), awaited=self._awaited)

    @property
    def devices(self) -> Mapping[str, DeviceRecord]:
        """Devices that are up, by name."""
        return self._devices.records

    def replicas(self, pool: str) -> Sequence[EndpointInfo]:
        """Return the replicas of a pool that are up."""
        return self._pools.get(pool, ())

    def count(self, pool: str) -> int:
        """Replicas that are up."""
        return len(self._pools.get(pool, ()))

    def follow(self, collaboration: CollaborationPolicy, routing: Callable[[], RoutingPolicy]) -> None:
        """Other policies, from now on."""
        devices = DeviceIndex(collaboration.preference)
        devices.replace(self._devices.records)
        self._collaboration, self._devices = collaboration, devices
        self._new_routing, self._routing = routing, {}

    def see(self, snapshot: Snapshot, now_s: float = 0.0) -> None:
        """Take over a new snapshot, or the difference to the last one. now_s: as in `assign`."""
        # A pool that is listed anew knows of what was assigned before.
        old = [listed for pool, listed in snapshot.pools.items() if listed == self._pools.get(pool)]
        unchanged = {endpoint.key for listed in old for endpoint in listed}
        self._assigned = Counter({key: n for key, n in self._assigned.items() if key in unchanged})
        self._assignments = deque(each for each in self._assignments if each[1] in unchanged)
        self._version, self._pools = snapshot.version, dict(snapshot.pools)
        for endpoint in (each for listed in self._pools.values() for each in listed):
            # Where nothing else has changed, the news may be from before the last assignments.
            stale = endpoint.key in unchanged and self._assigned[endpoint.key]
            if (backlog := endpoint.load.backlog) is not None and not stale:
                self._prompts[endpoint.key] = float(backlog), max(now_s, self._now_s)
        self._awaited = snapshot.awaited
        known = self._devices.records.keys()
        gone = known - snapshot.devices.keys() if snapshot.since is None else known & set(snapshot.gone)
        for name in gone:
            self._left[name] = self._last_left_s = now_s
        if snapshot.since is None:
            self._devices.replace(snapshot.devices)
        else:
            self._devices.change(snapshot.devices, snapshot.gone)

    def assign(self, wanted: RoutingRequest, waited_s: float = 0.0, now_s: float = 0.0) -> Assignment:
        """Choose mode and endpoints.

        waited_s: for how long the request has waited for them; after a while, endpoints that failed it may be tried
            again, and a device that has just left is done without.
        now_s: of any one clock, seconds.

        Raises UnknownMode, NoSuchDevice, InvalidRequest, NoCapacity, SplitMismatch, and NoEndpoint where what is needed
        is not up (it may come: ask again with the next snapshot).
        """
        self._forget_assigned(now_s)
        if wanted.sent:
            self._kept_until_s |= dict.fromkeys(wanted.full, now_s + FIRST_S)
        wanted, ways, retry_lost = self._without_left(wanted, waited_s), Ways(), waited_s >= RETRY_LOST_S
        try:
            chosen = self._choose(wanted, partial(self._candidates, wanted, ways, retry_lost, now_s, None))
        except NothingAllowed as error:
            if ways.full:
                raise NoCapacity("the devices that keep the request's limits are full", FULL_S) from None
            raise LimitsNotKept(str(error)) from None
        except NothingUp as error:
            raise NoEndpoint(str(error)) from None
        name, forecast = chosen.mode, None
        if chosen.reason is not None and (way := ways.found.get((name, chosen.device))) is not None:
            assert self.forecaster is not None
            cast, predicted = way
            taken = Way(name, chosen.device, cast)
            forecast = self.forecaster.forecast(taken, predicted, wanted, chosen.reason)
        else:
            while isinstance(found := self._cast(MODES[name], chosen.device, wanted, retry_lost, now_s), str):
                name = found
            cast = found
        return self._assigned_to(name, cast, forecast, wanted)

    def reconsider(self, wanted: RoutingRequest, present: Present, now_s: float) -> Assignment | None:
        """Return another assignment for the rest of an answer under way, None if it had better go on as it does. now_s:
        as in `assign`. Raises as that."""
        if self.forecaster is None:
            return None
        self._forget_assigned(now_s)
        self._vacated = frozenset(each.key for each in present.endpoints.values())
        try:
            self.forecaster.begin()
            staying = self.forecaster.staying(wanted, present)
            ways, kept = Ways(), Way(present.mode, present.device, present.endpoints)
            candidates = partial(self._candidates, wanted, ways, False, now_s, kept)
            chosen = staying and self._collaboration.reconsider(self._state(wanted, candidates), staying)
            if not chosen or chosen.reason is None:
                return None
            cast, predicted = ways.found[chosen.mode, chosen.device]
            taken = Way(chosen.mode, chosen.device, cast)
            forecast = self.forecaster.forecast(taken, predicted, wanted, chosen.reason)
        finally:
            self._vacated = frozenset()
        return self._assigned_to(chosen.mode, cast, forecast, wanted)

    def _forget_assigned(self, now_s: float) -> None:
        """Take over the time, and forget assignments that are known by now, or over."""
        self._now_s = now_s
        self._devices.forget_assigned(now_s - ASSIGNED_S)
        while self._assignments and self._assignments[0][0] < now_s - ASSIGNED_S:
            self._assigned[self._assignments.popleft()[1]] -= 1

    def _assigned_to(
        self, name: str, cast: Endpoints, forecast: Forecast | None, wanted: RoutingRequest
    ) -> Assignment:
        """Count an assignment, and return it."""
        mode, now_s = MODES[name], self._now_s
        device = cast.get(role.name) if (role := mode.device_role()) else None
        for endpoint in cast.values():
            if endpoint.device:
                self._devices.assigned(endpoint.name, now_s)
            else:
                self._assigned[endpoint.key] += 1
                self._assignments.append((now_s, endpoint.key))
                if forecast is not None:
                    pending = self.pending(endpoint, forecast.token_s) if forecast.token_s else 0.0
                    self._prompts[endpoint.key] = pending + wanted.prompt_tokens + wanted.sent, now_s
        return Assignment(
            mode=name,
            endpoints=cast,
            device=device.name if device else None,
            replaceable=frozenset(
                r.name for r in mode.roles if r.name in cast and self._spare(r, cast, wanted)
            ),
            forecast=forecast,
        )

    def _without_left(self, wanted: RoutingRequest, waited_s: float) -> RoutingRequest:
        """Return a new request as it goes on if no device that it asks for is there, and one has just left: without
        any, as after its loss, if its account and its objective leave that open. Raises NoEndpoint while that may yet
        be back."""
        kind = None if wanted.mode is None else MODES.get(wanted.mode)
        role = None if kind is None else kind.device_role()
        named = wanted.named or ((ANY_DEVICE,) if role is not None and role.needed else ())
        mode = "cloud" if role is None else role.if_lost
        if not named or _begun(wanted) or wanted.objective is not None or (kind is not None and kind.private):
            return wanted
        if not mode or (wanted.modes is not None and mode not in wanted.modes):
            return wanted
        among = wanted.devices if ANY_DEVICE in named else named
        if self._devices.best(among) is not None or self._now_s - self._left_s(among) > LATELY_S:
            return wanted
        if waited_s < AWAY_S:
            raise NoEndpoint("a device that was there has just left")
        return replace(wanted, mode=mode, device=None)

    def _left_s(self, among: Sequence[str] | None) -> float:
        """Return when the last of these devices, or of all, has left; minus infinity if none has."""
        if among is None:
            return self._last_left_s
        return max((self._left.get(name, -inf) for name in among), default=-inf)

    def assigned_elsewhere(self, made: Assignment, now_s: float) -> None:
        """Count the sessions of another model's request at the devices that both have."""
        self._devices.forget_assigned(now_s - ASSIGNED_S)
        for endpoint in made.endpoints.values():
            if endpoint.device:
                self._devices.assigned(endpoint.name, now_s)

    def _choose(self, wanted: RoutingRequest, candidates: Callable[[Objective], Candidates]) -> Collaboration:
        if wanted.mode is not None and wanted.mode not in MODES:
            raise UnknownMode(f"mode {wanted.mode!r} is not one of {', '.join(MODES)}")
        named, known = wanted.named, self._devices.records
        if named and not any(name == ANY_DEVICE or name in known for name in named) and not _begun(wanted):
            self._refuse(*named)
        return self._collaboration.choose(self._state(wanted, candidates))

    def _state(
        self, wanted: RoutingRequest, candidates: Callable[[Objective], Candidates]
    ) -> CollaborationState:
        return CollaborationState(
            mode=wanted.mode,
            device=wanted.device,
            modes={
                name: device_part(mode)
                for name, mode in MODES.items()
                if wanted.modes is None or name in wanted.modes
            },
            best_device=lambda among: self._devices.best(wanted.devices if among is None else among),
            prompt_tokens=wanted.prompt_tokens,
            max_tokens=wanted.max_tokens,
            reader_rate=wanted.reader_rate,
            budget=wanted.budget,
            objective=wanted.objective,
            candidates=candidates,
        )

    def _candidates(
        self,
        wanted: RoutingRequest,
        ways: Ways,
        retry_lost: bool,
        now_s: float,
        besides: Way | None,
        objective: Objective,
    ) -> Candidates:
        """Return the ways to answer a request that its wishes leave open, and put them into `ways`. Devices after the
        first one are compared in the modes that come near the best with that one. besides: the way in which the answer
        is given up to now, so that only those count which can go on with it; None for a new one."""
        if self.forecaster is None:
            return [], []
        self.forecaster.begin()
        names = MODES if wanted.mode is None else (wanted.mode,)
        asked = None if wanted.device == ANY_DEVICE else wanted.device
        among = wanted.devices if asked is None else (asked,) if isinstance(asked, str) else asked
        devices = [name for name in self._devices.few(COMPARED, among) if self._is_free(name, wanted, ways)]
        missed = self.missed.copy()
        for name in names:
            mode = MODES[name]
            if (
                name in wanted.unsuited
                or (wanted.modes is not None and name not in wanted.modes)
                or (mode.private and wanted.split is None)
                or (besides is not None and not mode.takes_over)
            ):
                continue
            part = device_part(mode)
            free = wanted.device is None or part is DevicePart.NEVER
            if wanted.mode is None and wanted.device is not None and part is DevicePart.NEVER:
                continue
            alone: list[str | None] = [None] if free and part is not DevicePart.MUST else []
            for device in alone if part is DevicePart.NEVER else [*alone, *devices[:1]]:
                try:
                    cast = self._cast(mode, device, wanted, retry_lost, now_s, ways)
                except EngineError:
                    continue
                if isinstance(cast, str) or (device is None and part is DevicePart.MAY and len(cast) < 2):
                    continue
                if besides is not None and name == besides.mode and _same(cast, besides.endpoints):
                    continue
                self._predict(Way(name, device, cast), wanted, ways, objective)
        self.missed = missed
        if len(devices) > 1:
            near = NEAR * min(ways.losses, default=inf)
            for (name, first), loss in list(zip(ways.found, ways.losses, strict=True)):
                if first is not None and loss <= near and (role := MODES[name].device_role()) is not None:
                    like = ways.found[name, first][0]
                    for device in devices[1:]:
                        cast = {**like, role.name: ways.devices[device]}
                        self._predict(Way(name, device, cast), wanted, ways, objective)
        return [
            Candidate(*way, predicted.expected) for way, (_, predicted) in ways.found.items()
        ], ways.losses

    def _predict(self, way: Way, wanted: RoutingRequest, ways: Ways, objective: Objective) -> None:
        """Put a way's prediction and loss into `ways`, if it can be predicted."""
        assert self.forecaster is not None
        predicted = self.forecaster.predict(way.mode, wanted, way.endpoints)
        if predicted is not None:
            ways.found[way.mode, way.device] = way.endpoints, predicted
            ways.losses.append(objective.limited_loss(predicted.expected))

    def _is_free(self, device: str, wanted: RoutingRequest, ways: Ways) -> bool:
        """Return whether a device has room for a request that it has not refused or lost."""
        endpoint = ways.devices[device] = self._device(device)
        if not self._devices.has_room(device) and endpoint.key not in self._vacated:
            ways.full = True
            return False
        return endpoint.key not in wanted.full and endpoint.key not in wanted.lost

    def _cast(
        self,
        mode: type[Mode],
        device: str | None,
        wanted: RoutingRequest,
        retry_lost: bool,
        now_s: float,
        ways: Ways | None = None,
    ) -> Endpoints | str:
        """Endpoints by role, or the mode that serves the request in place of this one."""
        cast: dict[str, EndpointInfo] = {}
        for role in mode.roles:
            needed = role.needed and role.unless not in cast
            forgotten = role.pool == DEVICE and _begun(wanted) and self._is_forgotten(device)
            if role.if_lost and role.unless not in cast and (forgotten or _has_lost(role, wanted)):
                return role.if_lost
            if role.pool != DEVICE:
                key = role.pool, role.expendable
                if ways is not None and key in ways.replicas:
                    endpoint = ways.replicas[key]
                else:
                    endpoint = self._replica(role, wanted, retry_lost, now_s)
                    if ways is not None:
                        ways.replicas[key] = endpoint
            elif forgotten or (device is None and not needed):
                endpoint = None
            else:
                endpoint = (ways and ways.devices.get(device or "")) or self._device(device)
            if endpoint is not None:
                cast[role.name] = endpoint
            elif needed:
                empty = None if self._pools.get(role.pool) else role.pool
                if not role.if_absent:
                    if wanted.sent and empty is None and not any(e.continues for e in self._pools[role.pool]):
                        raise EngineStopped(f"no {role.pool} can continue an answer that has begun")
                    raise NoEndpoint(f"no {role.pool} is up", empty)
                if empty:
                    self.missed[empty] += 1
                return role.if_absent
        return cast

    def _refuse(self, *devices: str) -> NoReturn:
        """None of these is there: one that is to come back is worth waiting for."""
        if self._awaited and (ANY_DEVICE in devices or not self._awaited.isdisjoint(devices)):
            raise NoEndpoint("a device that should be there is not up")
        if ANY_DEVICE in devices:
            raise NoSuchDevice("no device is registered")
        raise NoSuchDevice(f"no device {' or '.join(map(repr, devices))} is registered")

    def _is_forgotten(self, device: str | None) -> bool:
        """Whether it was there and is not now: answers under way do without it."""
        return device is not None and device not in self._devices.records

    def _device(self, name: str | None) -> EndpointInfo:
        device = self._devices.records.get(name or "")
        if device is None:
            self._refuse(name or ANY_DEVICE)
        return self._devices.endpoint(device.name)

    def _replica(
        self, role: EndpointRole, wanted: RoutingRequest, retry_lost: bool, now_s: float
    ) -> EndpointInfo | None:
        """Return a replica that is up and has not failed the request; None if there is none."""
        up = self._fitting(role.pool, wanted)
        if wanted.silent:
            heard = [e for e in up if e.key not in wanted.silent]
            up = heard if heard or role.expendable else up
        if wanted.lost and (role.expendable or not retry_lost):
            up = [e for e in up if e.key not in wanted.lost]
        elif wanted.lost and up:  # those that failed it least often
            fewest = min(wanted.lost.count(e.key) for e in up)
            up = [e for e in up if wanted.lost.count(e.key) == fewest]
        if wanted.full:
            up = [e for e in up if e.key not in wanted.full] or up
        elif self._kept_until_s and not wanted.sent and not role.expendable:
            up = self._not_kept(up, now_s)
        if not up:
            return None
        up = [e for e in up if not e.rests] or up
        policy = self._routing.get(role.pool)
        if policy is None:
            policy = self._routing[role.pool] = self._new_routing()
        return up[policy.choose([self._view(e, wanted) for e in up])]

    def _fitting(self, pool: str, wanted: RoutingRequest) -> Sequence[EndpointInfo]:
        """Return the replicas that are up and can go on with the answer; of parts of a split model, those that fit the
        driver's part."""
        up, ours = self._pools.get(pool, ()), wanted.split
        if wanted.sent and not all(e.continues for e in up):
            up = tuple(e for e in up if e.continues)
        if ours is None or not any(e.split for e in up):
            return up
        whys = [misfit(ours, e.split) if e.split else None for e in up]
        if None not in whys and not _begun(wanted):
            raise SplitMismatch(f"no {pool} fits this device: {'; '.join(sorted(filter(None, set(whys))))}")
        return [e for e, why in zip(up, whys, strict=True) if why is None]

    def _not_kept(self, up: Sequence[EndpointInfo], now_s: float) -> Sequence[EndpointInfo]:
        """Return the replicas at which no begun answer waits for room: it goes before new ones."""
        kept = self._kept_until_s = {
            k: until_s for k, until_s in self._kept_until_s.items() if until_s > now_s
        }
        free = [e for e in up if e.key not in kept]
        if up and not free:
            raise NoCapacity("room is reserved for answers already under way", min(kept.values()) - now_s)
        return free

    def _spare(self, role: EndpointRole, cast: Endpoints, wanted: RoutingRequest) -> bool:
        """Whether the answer could go on without those who have this role now."""
        if role.if_absent or not role.needed or role.unless in cast:
            return True
        pools = [r.pool for r in MODES[role.if_lost].roles if r.needed] if role.if_lost else [role.pool]
        taken = {cast[role.name].key, *wanted.lost}
        return all(
            any(e.continues and e.key not in taken for e in self._fitting(pool, wanted)) for pool in pools
        )

    def _view(self, endpoint: EndpointInfo, wanted: RoutingRequest) -> ReplicaView:
        """Return a replica as the policy sees it."""
        price = endpoint.price or self.price or self.usual_price
        usd = price.of(wanted.prompt_tokens + wanted.sent, wanted.max_tokens - wanted.sent)
        return ReplicaView(self._load(endpoint), usd, endpoint.load.first_token_s)

    def _load(self, endpoint: EndpointInfo) -> int:
        return max(0, endpoint.sessions + self._assigned[endpoint.key] - (endpoint.key in self._vacated))

    def load(self, endpoint: EndpointInfo) -> int:
        """Return the sessions of a replica or a device, with those assigned since the last news."""
        if not endpoint.device:
            return self._load(endpoint)
        return max(0, self._devices.load(endpoint.name) - (endpoint.key in self._vacated))

    def pending(self, target: EndpointInfo, token_s: float) -> float:
        """Return the prompt tokens that a replica has been assigned and not yet taken in, if one takes it `token_s`."""
        tokens, since_s = self._prompts.get(target.key, (0.0, 0.0))
        return max(0.0, tokens - (self._now_s - since_s) / token_s)

    def queue(self, target: EndpointInfo) -> float:
        """Return a verifier's other sessions, in relation to `batch_limit`."""
        return max(0, self._load(target) - 1) / self.batch_limit


def _same(one: Endpoints, other: Endpoints) -> bool:
    """Return whether the same endpoints have the same roles."""
    return {role: each.key for role, each in one.items()} == {role: each.key for role, each in other.items()}


@cache
def device_part(mode: type[Mode]) -> DevicePart:
    """Whether a device takes part in a mode."""
    role = mode.device_role()
    if role is None:
        return DevicePart.NEVER
    return DevicePart.MUST if role.needed else DevicePart.MAY


def _begun(wanted: RoutingRequest) -> bool:
    """Whether the request has been assigned before."""
    return bool(wanted.sent or wanted.lost)


def _lost_device(wanted: RoutingRequest) -> bool:
    return any(key.partition("@")[0] not in POOLS for key in wanted.lost)


def _has_lost(role: EndpointRole, wanted: RoutingRequest) -> bool:
    """Whether somebody with this role may have failed the request."""
    if role.pool == DEVICE:
        return _lost_device(wanted)
    return any(key.partition("@")[0] == role.pool for key in wanted.lost)
