"""The router's part in mode sketch: whether an answer is sketched, and who expands it when.

Expansions wait in the policy's queue until a device or an expander is idle, which then takes some of them at once
(PICE, Algorithm 1), with one of its models (Algorithm 2). No Ray in here, and no clock but the event loop's: a
simulation uses the same object.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes.alone import by_target
from tandem.deployments.modes.base import RouterPart, Surroundings
from tandem.deployments.modes.sketch import profiles
from tandem.deployments.modes.sketch.loaded_models import DeviceModels
from tandem.deployments.modes.sketch.outlook import Plan, Sketches, mixed, outlook
from tandem.deployments.modes.sketch.profiles import Profiles
from tandem.deployments.modes.sketch.questions import (
    Place,
    PlaceReport,
    PlaceRequest,
    PlanRequest,
    SketchBriefing,
    SketchPlan,
    SketchTaught,
)
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.modes.speculative.mode import SpeculativeRouter
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.assignment import FREE, EndpointInfo, Endpoints, Prices, RoutingRequest
from tandem.deployments.request.pools import EXPANDER, VERIFIER, pool_name
from tandem.policies.cost import PerToken
from tandem.policies.estimators.moving_average import MovingAverage
from tandem.policies.routing.objectives import Prediction
from tandem.policies.sketch.dispatch import SketchJob
from tandem.policies.sketch.sketch_length import Coming, SketchDecision, SketchState, SmallModel

ENDPOINTS_KEPT = 65_536
"""Most endpoints whose speed is kept; the longest unseen is dropped."""
LONGEST = 100_000
"""Tokens of an answer: the longer, the better it can be sketched."""
SAMPLED = 16
"""Devices by which all are judged before a request is planned."""
PATIENCE = 2.0
"""Factor on its expected duration beyond which a sketch is not waited for."""
WORTH_IT = 0.75
"""Share of the target's time within which an expansion has to be expected, as the target's own is surer."""
LATE_S = 30.0
"""Seconds for which an endpoint whose expansion the target had to go on for gets no other."""
FORGOTTEN_S = 120.0
"""Seconds after which a place that was not returned is free: its holder has died."""


@dataclass(frozen=True, slots=True)
class Worker:
    """An endpoint that can expand, with one of its models.

    sequences: number of sequences that it decodes at once.
    token_s: seconds that each of them takes for a token; 0: not known.
    answer_token_s: seconds that an answer takes for each of its tokens, some of them at once; 0: not known.
    loaded: whether the model is loaded.
    """

    endpoint: EndpointInfo
    sequences: int
    token_s: float
    answer_token_s: float
    loaded: bool = True

    def takes_s(self, tokens: int) -> float:
        """Return the seconds for an answer of `tokens` tokens; 0 if unknown."""
        return tokens * self.answer_token_s


class _Sample(NamedTuple):
    """Some of what expands, by which all is judged.

    devices: those among the workers, once for each model.
    able: number of endpoints that expand, in the whole fleet.
    rtt_s: the longest round-trip time.
    read_token_s: mean seconds in which one takes in a token.
    joules: per token.
    speeds: seconds a token of those that are idle, by model; filled when asked for.
    """

    workers: tuple[Worker, ...]
    devices: tuple[EndpointInfo, ...]
    able: int
    rtt_s: float
    read_token_s: float
    joules: PerToken
    speeds: dict[str, float | None]

    def answer_token_s(self, model: str, busy: Collection[str], ahead: int) -> float | None:
        """Return the speed that a job gets, as `_answer_token_s`."""
        if busy or ahead:
            return _answer_token_s(model, self.workers, busy, ahead)
        if model not in self.speeds:
            self.speeds[model] = _answer_token_s(model, self.workers, (), 0)
        return self.speeds[model]

    @classmethod
    def of(cls, workers: tuple[Worker, ...], devices: int) -> _Sample:
        """Return the sample of these. devices: number of the fleet's."""
        endpoints = [worker.endpoint for worker in workers]
        able = len({endpoint.key for endpoint in endpoints})
        return cls(
            workers,
            tuple(endpoint for endpoint in endpoints if endpoint.device),
            max(able, able * devices // SAMPLED),
            max((endpoint.rtt_s for endpoint in endpoints), default=0.0),
            sum(endpoint.prefill_token_s for endpoint in endpoints) / max(1, len(endpoints)),
            endpoints[0].joules if endpoints else FREE,
            {},
        )


@dataclass(frozen=True, slots=True)
class _Promised:
    """An expansion that will come, once its sketch is written.

    tokens: expected length of the answer.
    due_s: when it will come.
    until_s: when it is no longer waited for.
    """

    tokens: int
    due_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An expansion without a place."""

    wanted: PlaceRequest
    job: SketchJob
    placed: asyncio.Future[Place | None]


@dataclass(frozen=True, slots=True)
class _Held:
    """Place in use."""

    worker: Worker
    tokens: int
    since_s: float

    def left_s(self, now_s: float) -> float:
        """Return the seconds until its work is done, as far as is known."""
        takes_s = self.worker.endpoint.load_s + self.worker.takes_s(self.tokens)
        return max(0.0, self.since_s + takes_s - now_s)


class _Speed:
    """Measured speed of an endpoint; see Worker."""

    __slots__ = ("answer_token_s", "token_s")

    def __init__(self) -> None:
        self.token_s, self.answer_token_s = MovingAverage(), MovingAverage()


class Expansions(RouterPart[SketchSettings]):
    """Decides whether answers are sketched, and hands out places at which sketches are expanded."""

    def __init__(self, settings: SketchSettings, router: Surroundings) -> None:
        super().__init__(settings, router)
        self._speculation = SpeculativeRouter(SpeculativeSettings(), router)
        self._target_token_s = 0.0
        self._earlier: LRUTable[str, dict[str, float]] = LRUTable(
            ENDPOINTS_KEPT
        )  # seconds a token, by device and model
        self._written = Profiles()
        self._sketches = Sketches()
        self._waiting: dict[int, _Waiting] = {}
        self._sample: _Sample | None = None  # of what expands
        self.follow(settings)
        self._held: dict[int, _Held] = {}
        self._promised: dict[int, _Promised] = {}  # by request
        self._seen: LRUTable[tuple[str, str], _Speed] = LRUTable(ENDPOINTS_KEPT)  # by key and model
        self._late: LRUTable[str, float] = LRUTable(ENDPOINTS_KEPT)  # until when, by key
        self._models: LRUTable[str, DeviceModels] = LRUTable(
            ENDPOINTS_KEPT
        )  # by key, of devices with several

    def follow(self, settings: SketchSettings) -> None:
        super().follow(settings)
        self._policy, self._sample = settings.sketching.create(), None
        self._queue = settings.queue.create()
        for waiting in self._waiting.values():
            self._queue.add(waiting.job)

    @property
    def waiting(self) -> int:
        """Number of expansions without a place."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._held

    @property
    def profiles(self) -> Profiles:
        """Return the measured speeds, to keep."""
        return Profiles(
            target_token_s=self._target_token_s,
            devices={name: dict(by_model) for name, by_model in self._earlier.items()},
        )

    @property
    def _profiles_file(self) -> Path | None:
        """Return this model's file; None if none is kept."""
        path = self.settings.profiles
        return path and path.with_name(pool_name(path.name, self.router.suffix))

    async def recall(self) -> None:
        if (path := self._profiles_file) is not None:
            self._written = known = await asyncio.to_thread(profiles.read, path)
            self._target_token_s = known.target_token_s
            self._earlier.update(known.devices)

    async def keep(self) -> None:
        path, known = self._profiles_file, self.profiles
        if path is not None and known != self._written:
            await asyncio.to_thread(profiles.write, path, known)
            self._written = known

    def brief(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> SketchBriefing:
        drafted = "drafter" in endpoints
        return SketchBriefing(self._speculation.brief(wanted, endpoints, prices) if drafted else None)

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction | None:
        """Return None where the answer would not be sketched: the cloud's own would come sooner."""
        alone = by_target(self.router, wanted, endpoints["target"], prices)
        if alone.tokens < self._policy.shortest or wanted.sent:
            return None
        full = self._speculation.predict(wanted, endpoints, prices) if "drafter" in endpoints else alone
        state, device, read_token_s = self._ahead(full, "drafter" in endpoints)
        choice = self._policy.choose(state)
        if choice.model is None:
            return None
        queue = self.router.fleet.queue(endpoints["target"])
        plan = Plan(choice, state, queue, wanted.prompt_tokens, device, read_token_s)
        capability = self.settings.models[choice.model].capability
        sketched = outlook(full, plan, prices, self._sketches.lost(wanted.content, capability))
        return mixed(sketched, full, self._sketches.planned.value)

    def learn(self, report: Report, taught: object) -> None:
        if isinstance(taught, SketchTaught):
            self._speculation.learn(report, taught.rounds)
            content = "" if report.forecast is None else report.forecast.content
            capability = max(model.capability for model in self.settings.models.values())
            if report.counts:
                self._sketches.learn(taught, content, capability)

    def _ahead(self, full: Prediction, speculates: bool) -> tuple[SketchState, PerToken, float]:
        """Return the state in which an answer would be sketched, joules per token of a device, and seconds in which it
        takes one in; devices are taken to be like those that are listed first."""
        sample = self._sample
        if sample is None:
            devices = self.router.fleet.devices
            workers = tuple(self._workers(islice(devices.values(), SAMPLED)))
            sample = self._sample = _Sample.of(workers, len(devices))
        token_s, rtt_s, fleet = full.tpot_s.value, sample.rtt_s, self.router.fleet
        # Devices answer other requests, too, and are as much slower.
        shared = 1.0 + sum(map(fleet.load, sample.devices)) / max(1, len(sample.devices))
        busy = {held.worker.endpoint.key for held in self._held.values()}
        waiting = [Coming(0.0, waiting.job.tokens) for waiting in self._waiting.values()]
        coming = [Coming(0.0, promised.tokens) for promised in self._promised.values()]
        state = SketchState(
            tokens=round(full.tokens),
            llm_s=lambda tokens: tokens * token_s,
            network_s=lambda _: rtt_s,
            models=tuple(
                SmallModel(name, shared * speed_s / token_s, known.capability, known.least_share)
                for name, known in self.settings.models.items()
                if (speed_s := sample.answer_token_s(name, busy, len(waiting))) is not None
            ),
            devices=sample.able,
            queue=(*waiting, *coming),
            room=self._queue.capacity,
            under_way_s=sum(held.worker.takes_s(held.tokens) for held in self._held.values()) / 2,
            speculates=speculates,
            load=self._load(),
        )
        return state, sample.joules, shared * sample.read_token_s

    async def ask(self, question: PlanRequest | PlaceRequest) -> SketchPlan | Place | None:
        if isinstance(question, PlanRequest):
            return await self.plan(question)
        return await self.place(question)

    def tell(self, said: PlaceReport) -> None:
        self.free(said)

    async def plan(self, wanted: PlanRequest) -> SketchPlan:
        """Return whether that answer is sketched, and how."""
        self._target_token_s = wanted.target_token_s or self._target_token_s
        wanted = replace(wanted, target_token_s=self._target_token_s)
        workers = [worker for worker in self._workers() if self._may(worker, wanted)]
        state = self._state(wanted, workers)
        choice = self._policy.choose(state)
        self._sketches.planned.note(float(choice.model is not None))
        if choice.model is None:
            assert choice.reason is not None
            best = replace(state, tokens=LONGEST, queue=(), under_way_s=0.0)
            hopeless = wanted.target_token_s > 0 and self._policy.choose(best).model is None
            return SketchPlan(reason=choice.reason.name.lower(), hopeless=hopeless)
        self._promise(wanted, choice, state)
        idle = len({worker.endpoint.key for worker in workers} - self.busy())
        chosen = {worker.endpoint.key for worker in workers if worker.endpoint.model == choice.model}
        share = max(choice.tokens / wanted.expected, self.settings.models[choice.model].least_share)
        budget_s = state.full_s - state.llm_s(choice.tokens)
        return SketchPlan(
            sketch=choice.tokens,
            model="" if chosen & self._models.keys() else choice.model,
            share=share,
            budget_s=budget_s,
            within_s=self.settings.within * budget_s,
            bounded=self._policy.bounded and state.full_s > 0,
            full_s=state.full_s,
            candidates=max(1, min(self.settings.candidates, idle)),
            load=state.load,
        )

    def _load(self) -> float:
        """Return the share of its places that the emptiest target has given to other requests."""
        fleet = self.router.fleet
        return min((fleet.queue(target) for target in fleet.replicas(VERIFIER)), default=inf)

    def _promise(self, wanted: PlanRequest, choice: SketchDecision, state: SketchState) -> None:
        """Record an expected expansion. The sketch may also turn out useless, and is at most as long as decided."""
        assert choice.model is not None
        now_s = asyncio.get_running_loop().time()
        due_s = state.llm_s(self.settings.models[choice.model].least_share * wanted.expected)
        until_s = max(PATIENCE * state.llm_s(choice.tokens), self.settings.wait_s)
        self._promised[wanted.request] = _Promised(wanted.expected, now_s + due_s, now_s + until_s)

    def _coming(self, now_s: float) -> tuple[Coming, ...]:
        """Return the expansions that have no place yet."""
        late = [request for request, promised in self._promised.items() if promised.until_s < now_s]
        for request in late:
            del self._promised[request]
        coming = [Coming(max(0.0, job.due_s - now_s), job.tokens) for job in self._promised.values()]
        waiting = (Coming(0.0, waiting.job.tokens) for waiting in self._waiting.values())
        return (*waiting, *sorted(coming))

    def _state(self, wanted: PlanRequest, workers: Sequence[Worker]) -> SketchState:
        token_s = wanted.target_token_s
        now_s = asyncio.get_running_loop().time()
        coming = self._coming(now_s)
        in_time = [w for w in workers if w.takes_s(wanted.expected) <= token_s * wanted.expected]
        workers = in_time or workers
        return SketchState(
            tokens=wanted.expected,
            llm_s=lambda tokens: tokens * token_s,
            network_s=lambda _: max((worker.endpoint.rtt_s for worker in workers), default=0.0),
            models=tuple(
                SmallModel(name, speed_s / token_s if token_s else inf, known.capability, known.least_share)
                for name, known in self.settings.models.items()
                if (speed_s := _answer_token_s(name, workers, self.busy(), len(coming))) is not None
            ),
            devices=len({worker.endpoint.key for worker in workers}),
            queue=coming,
            room=self._queue.capacity,
            under_way_s=sum(held.left_s(now_s) for held in self._held.values()),
            speculates=wanted.speculates,
            load=self._load(),
        )

    async def place(self, wanted: PlaceRequest) -> Place | None:
        """Return a place for an expansion, in its turn; None if no worker could ever take it, or none was free in
        time."""
        loop = asyncio.get_running_loop()
        able = [worker for worker in self._workers() if self._may(worker, wanted)]
        if not able:
            return None
        wait_s = max(self.settings.wait_s, wanted.wait_s)
        if wanted.target_s < inf:
            quickest_s = min(worker.takes_s(wanted.tokens) for worker in able)
            wait_s = min(wait_s, max(wanted.target_s - quickest_s, wanted.dry_s))
            if self._ahead_s(able) > max(WORTH_IT * wanted.target_s - quickest_s, wanted.dry_s):
                return None
        number = wanted.id
        job = SketchJob(number, max(1, wanted.tokens), loop.time(), loop.time() + wanted.dry_s)
        if self._promised.pop(wanted.request, None) is None and len(self._queue) >= self._queue.capacity:
            return None
        self._queue.add(job)
        waiting = self._waiting[number] = _Waiting(wanted, job, loop.create_future())
        self.see()
        try:
            async with asyncio.timeout(wait_s):
                return await waiting.placed
        except (TimeoutError, asyncio.CancelledError) as error:
            if self._waiting.pop(number, None) is not None:
                self._queue.remove(job)
            else:  # it has just been placed
                self.free(PlaceReport(number))
            if isinstance(error, TimeoutError):
                return None
            raise

    def _ahead_s(self, workers: Sequence[Worker]) -> float:
        """Return the seconds until one of these is expected to be idle for one more expansion, as far as is known."""
        keys, now_s = {worker.endpoint.key for worker in workers}, asyncio.get_running_loop().time()
        token_s = fmean(worker.answer_token_s for worker in workers)
        left_s = sum(held.left_s(now_s) for held in self._held.values() if held.worker.endpoint.key in keys)
        waiting_s = sum(token_s * waiting.job.tokens for waiting in self._waiting.values())
        return (left_s + waiting_s) / len(keys) if keys <= self.busy() else 0.0

    def free(self, report: PlaceReport) -> None:
        """Free an expansion's place, wherever it was."""
        waiting = self._waiting.pop(report.id, None)
        if waiting is not None:
            self._queue.remove(waiting.job)
            if not waiting.placed.done():  # its request may just have been cancelled
                waiting.placed.set_result(None)
        held = self._held.pop(report.id, None)
        if held is None:
            return
        endpoint, now_s = held.worker.endpoint, asyncio.get_running_loop().time()
        if report.late:
            self._late[endpoint.key] = now_s + LATE_S
        if endpoint.key in self._models:
            self._models[endpoint.key].freed_s = now_s
        if (
            report.longest and not report.lost and held.worker.loaded
        ):  # otherwise its seconds are loading's, too
            speed = self._seen.of((endpoint.key, endpoint.model), _Speed)
            speed.token_s.note(report.seconds / report.longest)
            speed.answer_token_s.note(report.seconds / report.tokens)
            if endpoint.device:
                self._earlier.of(endpoint.name, dict)[endpoint.model] = speed.answer_token_s.value
        self.see()

    def see(self) -> None:
        """Assign idle workers after a change."""
        self._sample = None
        if not self._waiting:
            return
        busy, now_s = self.busy(), asyncio.get_running_loop().time()
        by_key: dict[str, list[Worker]] = defaultdict(list)
        for worker in self._workers():
            if worker.endpoint.key not in busy:
                by_key[worker.endpoint.key].append(worker)
        idle = sorted(by_key.values(), key=lambda workers: min((not w.loaded, w.token_s) for w in workers))
        left = [
            workers for workers in idle if not self._give(workers, [w for w in workers if w.loaded], now_s)
        ]
        for workers in left:  # jobs that no idle worker takes with its loaded model
            if len(workers) > 1 and self._may_switch(workers[0].endpoint, now_s):
                self._give(workers, workers, now_s)

    def _give(self, workers: Sequence[Worker], willing: Sequence[Worker], now_s: float) -> bool:
        """Assign an idle worker its share of the jobs that one of `willing` may take; return whether there were any.
        workers: the endpoint with each of its models."""
        full, several = len(self._queue) >= self._queue.capacity, len(workers) > 1
        most = min(self.settings.batch, workers[0].sequences)
        jobs = self._queue.take(1 if several else most, now_s, lambda job: self._any_may(willing, job))
        if not jobs:
            return False
        worker = (
            self._choose(workers, self._waiting[jobs[0].key].wanted, full, now_s) if several else workers[0]
        )
        if several and most > 1:
            jobs += self._queue.take(most - 1, now_s, lambda job: self._any_may([worker], job))
        for job in jobs:
            waiting = self._waiting.pop(job.key)
            place = Place(worker.endpoint, worker.sequences // len(jobs), worker.token_s)
            self._held[job.key] = _Held(worker, waiting.wanted.tokens, now_s)
            waiting.placed.set_result(place)
        return True

    def _any_may(self, workers: Sequence[Worker], job: SketchJob) -> bool:
        return any(self._may(worker, self._waiting[job.key].wanted) for worker in workers)

    def _choose(self, workers: Sequence[Worker], wanted: PlaceRequest, full: bool, now_s: float) -> Worker:
        """Return the worker of the model with which a device takes a job (PICE, Algorithm 2)."""
        by_model = {worker.endpoint.model: worker for worker in workers}
        able = [model for model, worker in by_model.items() if self._may(worker, wanted)]
        if not self._may_switch(workers[0].endpoint, now_s):
            able = [model for model in able if by_model[model].loaded]
        remaining_s = {model: worker.takes_s(wanted.tokens) for model, worker in by_model.items()}
        models = self._models[workers[0].endpoint.key]
        return by_model[models.choose(able, remaining_s, wanted.budget_s, full)]

    def _may_switch(self, endpoint: EndpointInfo, now_s: float) -> bool:
        """Return whether no other request works with the device's loaded model."""
        return not self._models[endpoint.key].busy_otherwise(now_s)

    def busy(self) -> set[str]:
        """Return the keys of the endpoints that expand now."""
        forgotten_s = asyncio.get_running_loop().time() - FORGOTTEN_S
        for number in [n for n, held in self._held.items() if held.since_s < forgotten_s]:
            del self._held[number]
        return {held.worker.endpoint.key for held in self._held.values()}

    def _workers(self, records: Iterable[DeviceRecord] | None = None) -> Iterator[Worker]:
        """Yield all running endpoints whose model expands. records: of the devices that are asked; None: of all."""
        for pool in self.router.fleet.replicas(EXPANDER):
            if pool.model in self.settings.models:
                yield self._worker(pool, self.settings.sequences, 0.0)
        for record in self.router.fleet.devices.values() if records is None else records:
            if record.models:
                yield from self._with_each(record)
            elif record.model in self.settings.models:
                endpoint = EndpointInfo.of(record)
                yield self._worker(endpoint, record.capacity, record.decode_token_s)

    def _worker(self, endpoint: EndpointInfo, sequences: int, said_s: float, loaded: bool = True) -> Worker:
        """Return a worker with its measured speed, else an earlier router's, else the device's own figure, seconds per
        token."""
        seen = self._seen.get((endpoint.key, endpoint.model))
        if seen is not None:
            return Worker(endpoint, sequences, seen.token_s.value, seen.answer_token_s.value, loaded)
        earlier = self._earlier.get(endpoint.name, {}).get(endpoint.model)
        if earlier is None:
            return Worker(endpoint, sequences, said_s, said_s / self.settings.parallelism, loaded)
        return Worker(endpoint, sequences, said_s or earlier, earlier, loaded)

    def _with_each(self, record: DeviceRecord) -> Iterator[Worker]:
        """Yield a device with each of its models that expand, the smallest first."""
        known = self.settings.models
        models = sorted(
            (model for model in record.models if model.name in known),
            key=lambda model: (known[model.name].capability, model.decode_token_s),
        )
        endpoint, names = EndpointInfo.of(record), tuple(model.name for model in models)
        its = self._models.get(endpoint.key)
        if its is None or its.names != names:
            if not models:
                return
            its = self._models[endpoint.key] = DeviceModels(record, models)
        its.see(record, models)
        for model in models:
            loaded = model.name == its.loaded
            there = endpoint.having(model, 0.0 if loaded else model.load_s)
            yield self._worker(there, record.capacity, model.decode_token_s, loaded)

    def _may(self, worker: Worker, wanted: PlanRequest | PlaceRequest) -> bool:
        """Return whether a worker is good enough, allowed, and has not failed that expansion."""
        endpoint = worker.endpoint
        model = self.settings.models[endpoint.model]
        if model.capability < wanted.min_quality:
            return False
        if endpoint.device and wanted.devices is not None and endpoint.name not in wanted.devices:
            return False
        if self._late.get(endpoint.key, 0.0) > asyncio.get_running_loop().time():
            return False
        if isinstance(wanted, PlanRequest):
            return True
        if model.least_share > wanted.share:
            return False
        if endpoint.load_s + worker.takes_s(wanted.tokens) > max(wanted.target_s, wanted.dry_s):
            return False
        return wanted.model in (None, endpoint.model) and endpoint.key not in (*wanted.lost, *wanted.beside)


def _answer_token_s(model: str, workers: Sequence[Worker], busy: Collection[str], ahead: int) -> float | None:
    """Return the speed of the worker that a job gets with `ahead` others before it, which take the quickest.
    None if none has that model. busy: keys of the endpoints that expand now."""
    its = [worker for worker in workers if worker.endpoint.model == model]
    idle = [worker for worker in its if worker.endpoint.key not in busy] if busy else its
    speeds = sorted(worker.answer_token_s for worker in idle or its)
    return speeds[min(ahead, len(speeds) - 1)] if speeds else None
