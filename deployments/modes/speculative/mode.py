"""Mode speculative (DSD): a small model drafts γ tokens, the target verifies them in one step.

In a distributed round a device drafts. If the window policy chooses γ ≤ 1, a round is fused: it stays in the cloud,
with the cloud's own drafter if there is one, else with the target alone, until the policy brings the device back. The
drafter gets the log, so that every switch is lossless. Without a device, the cloud's own drafter drafts in all rounds.
`policies.speculation.rounds` takes the decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from pydantic import computed_field

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.alone import (
    agreement,
    draft_token_s,
    expected_tokens,
    learn_target,
    target_alone,
)
from tandem.deployments.modes.base import (
    EndpointRole,
    Mode,
    ModeRun,
    RouterPart,
    Services,
    Surroundings,
    judged,
)
from tandem.deployments.modes.speculative.observer import Observer
from tandem.deployments.modes.speculative.pairs import Pairs, pair_name
from tandem.deployments.modes.speculative.settings import SpeculativeOptions, SpeculativeSettings
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import DEVICE, DRAFTER, VERIFIER
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import Drafts, Sampling
from tandem.policies.routing.objectives import Estimate, Prediction
from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.closed_form import expected_way
from tandem.policies.speculation.drafting import DraftChoice
from tandem.policies.speculation.history import PairSnapshot
from tandem.policies.speculation.rounds import DraftSource, Learnt, PairRound, Rounds, teach
from tandem.policies.speculation.window import StaticWindow

DRAFT_SEED = 0x5DEECE66D  # see drafting()
NOTHING = Drafts([])
OPENING_S = 0.25
"""Longest that an answer waits for its drafter to open a session; it goes on without drafts meanwhile."""


@dataclass(slots=True)
class Speculation(Figures):
    """Figures of speculative decoding.

    rounds: rounds of drafting and verification.
    drafted: tokens drafted in all rounds.
    accepted: drafted tokens that the target accepted.
    fused_rounds: rounds that stayed in the cloud although a device takes part.
    fused_drafted: tokens drafted in fused rounds.
    single_rounds: rounds of the target's token alone, as the answer could have no more.
    switches: changes between fused rounds and others.
    alone: tokens that the target decoded without drafts, as drafting would not have paid.
    """

    mode = "speculative"

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fused_rounds: int = 0
    fused_drafted: int = 0
    single_rounds: int = 0
    switches: int = 0
    alone: int = 0

    @property
    def distributed_rounds(self) -> int:
        """Rounds in which the pair's drafter drafted."""
        return self.rounds - self.fused_rounds - self.single_rounds

    @computed_field  # type: ignore[prop-decorator]
    @property
    def acceptance(self) -> float | None:
        """Share of drafted tokens that were accepted; null without any."""
        return self.accepted / self.drafted if self.drafted else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def accepted_per_round(self) -> float | None:
        """Tokens accepted per round, on average over all rounds; null without any."""
        return self.accepted / self.rounds if self.rounds else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean_window(self) -> float | None:
        """Tokens drafted per round that was neither fused nor single, on average; null without any."""
        distributed = self.distributed_rounds
        return (self.drafted - self.fused_drafted) / distributed if distributed else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fused_share(self) -> float | None:
        """Share of rounds, single ones aside, that were fused; null without any."""
        rounds = self.rounds - self.single_rounds
        return self.fused_rounds / rounds if rounds else None


@dataclass(frozen=True, slots=True)
class PairBriefing:
    """Briefing of a draft pair.

    queue: the target's sessions relative to batch_limit, the sessions in one of its steps.
    pair: statistics of the pair and its target, over all processes.
    """

    queue: float
    batch_limit: int
    pair: PairSnapshot


@dataclass(slots=True)
class _Taught:
    """learnt: the rounds of one pair, which is called `pair`. model: of its drafter."""

    pair: tuple[str, str]
    model: str
    learnt: list[Learnt] = field(default_factory=list)


class SpeculativeRouter(RouterPart[SpeculativeSettings]):
    """Remembers the rounds of all draft–target pairs."""

    def __init__(self, settings: SpeculativeSettings, router: Surroundings) -> None:
        super().__init__(settings, router)
        self.pairs = Pairs(StaticWindow)  # no windows are chosen here

    def brief(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> PairBriefing:
        target, drafter = endpoints["target"], endpoints.get("device") or endpoints["drafter"]
        fleet, pair = self.router.fleet, self.pairs.of(drafter, target)
        return PairBriefing(fleet.queue(target), fleet.batch_limit, pair.snapshot())

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction:
        target, device = endpoints["target"], endpoints.get("device")
        drafter = device or endpoints["drafter"]
        known, tokens = wanted.prompt_tokens + wanted.sent, expected_tokens(self.router, wanted)
        alone, agreed = (
            target_alone(self.router, wanted, target),
            agreement(self.router, wanted, drafter.model),
        )
        way = expected_way(
            self.pairs.state(drafter, target),
            alone.tpot_s,
            draft_token_s(self.router, drafter) if device else drafter.decode_token_s,
            agreed.share,
        )
        joules = drafter.joules.of(known, round(tokens * way.drafted))
        return Prediction(
            ttft_s=Estimate(alone.ttft_s),
            tpot_s=Estimate(way.token_s),
            usd=Estimate(prices.server.of(known, round(tokens)) + joules * prices.exchange_rate),
            joules=Estimate(joules),
            tokens=tokens,
            rate=wanted.reader_rate,
            others_s=alone.others_s * (way.steps + way.drafted),
            assumed=alone.assumed,
            informs=agreed.lost.value * agreed.lost.doubt if device and way.drafted else 0.0,
        )

    def learn(self, report: Report, taught: object) -> None:
        if isinstance(taught, list):
            for each in taught:
                teach(self.pairs.named(each.pair), each.learnt)
                judged = [done for done in each.learnt if isinstance(done, PairRound)]
                accepted = sum(done.accepted for done in judged)
                missed = sum(done.accepted < done.drafted for done in judged)
                content = "" if report.forecast is None else report.forecast.content
                if report.counts:
                    self.router.shared.agreement(each.model, content).note(accepted, accepted + missed)
        learn_target(self.router, report, SpeculativeMode.name, steps=False)


class SpeculativeMode(Mode):
    """Draft, verify, emit the accepted prefix and the target's own next token."""

    name = "speculative"
    roles = (
        EndpointRole("target", VERIFIER),
        EndpointRole("device", DEVICE, needed=False, expendable=True, if_lost="cloud"),
        EndpointRole(
            "drafter", DRAFTER, unless="device", expendable=True, if_absent="cloud", if_lost="cloud"
        ),
    )
    settings, options = SpeculativeSettings, SpeculativeOptions
    router = SpeculativeRouter
    figures = Speculation
    briefing = PairBriefing

    def __init__(self, settings: SpeculativeSettings, services: Services) -> None:
        self._pairs, self._fused_window = Pairs(settings.window.create), settings.fused_window

    def start(self, job: Job) -> ModeRun:
        return SpeculativeRun(job, self._pairs, self._fused_window)


class SpeculativeRun(ModeRun):
    """pairs: of this process, whose windows its policies choose. Concurrent requests share them, so that every round
    counts at once."""

    def __init__(self, job: Job, pairs: Pairs, fused_window: int) -> None:
        self.figures: Speculation = Speculation()
        self._job, self._pairs, self._fused_window = job, pairs, fused_window
        self._taught: list[_Taught] = []

    async def run(
        self, sessions: EndpointSessions, log: TokenLog, briefing: object
    ) -> AsyncGenerator[Delta, None]:
        assert isinstance(briefing, PairBriefing)
        job, target = self._job, sessions["target"]
        device, cloud = (
            None if (there := sessions.get(role)) is None else _DraftSession(there, target, job, log)
            for role in ("device", "drafter")
        )
        first = device or cloud
        assert first is not None
        pair = self._pairs.of(first.session.endpoint, target.endpoint)
        pair.adopt(briefing.pair)
        pair.target.queue = briefing.queue
        pair.helper = device is not None and cloud is not None
        first.choice = pair.drafting
        rounds = Rounds(
            pair,
            job.sampling.max_tokens,
            window=job.asked(SpeculativeOptions).window,
            distributed=device is not None,
            helper=cloud is not None,
            fused_window=self._fused_window,
            counts=self.figures,
        )
        drafts = first.session.endpoint
        self._taught.append(_Taught(pair_name(drafts, target.endpoint), drafts.model, rounds.learnt))
        drafters = {DraftSource.DEVICE: device, DraftSource.CLOUD: cloud}
        observer = Observer(pair, target, first.session, first.ready, briefing.batch_limit)
        try:
            await target.connect()
            if not pair.rests:
                first.begin()  # it reads the prompt while the target does
            await target.open(job.prompt, job.sampling, log.ids)
            verdict = await target.verify([])
            yield judged(len(log), 0, verdict)
            finish = verdict.finish
            while finish is None:
                if rounds.adaptive and first.begun:
                    observer.look()
                plan = rounds.next(len(log), first.behind)
                drafter = drafters.get(plan.drafter)
                if drafter is first and not await first.opened():
                    plan = rounds.put_off(plan)
                if plan.alone:
                    async with aclosing(_decode_alone(target, first, log, plan.alone, rounds)) as deltas:
                        async for delta in deltas:
                            finish = delta.finish
                            yield delta
                    continue
                draft, draft_s, read = NOTHING, 0.0, 0
                if drafter is not None:
                    read = drafter.behind
                    draft = await drafter.draft(plan.gamma)
                    if drafter is device:
                        observer.drafted(draft)
                    link_s = observer.device_s if drafter is first else drafter.session.endpoint.rtt_s
                    draft_s = max(0.0, drafter.took_s - link_s)
                verdict = await target.verify(draft.ids, draft.probs)
                verify_s = max(0.0, target.took_s - observer.target_s)
                rounds.done(len(draft.ids), verdict.accepted, len(verdict.ids), draft_s, verify_s, read)
                if drafter is first and first.sampled is not None:
                    rounds.compared(first.sampled, plan.gamma, verdict.accepted)
                finish = verdict.finish
                yield judged(len(log), len(draft.ids), verdict)
        finally:
            observer.stop()
            for drafter in (device, cloud):
                if drafter is not None:
                    drafter.forget()

    def report(self) -> list[_Taught]:
        return [taught for taught in self._taught if taught.learnt]


async def _decode_alone(
    target: EndpointSession, drafter: _DraftSession, log: TokenLog, count: int, rounds: Rounds
) -> AsyncGenerator[Delta, None]:
    """Have the target decode to the output's end, or until `rounds`, asked after every `count` tokens, wants drafts."""
    seconds, tokens, finish = 0.0, 0, None
    async with aclosing(target.generate()) as stream:
        async for new in stream:
            seconds, tokens, finish = seconds + target.took_s, tokens + len(new.ids), new.finish
            yield Delta(
                new.ids, [Origin.CLOUD] * len(new.ids), finish, logprobs=new.logprobs, position=len(log)
            )
            if finish is not None:
                break
            if tokens >= count:
                rounds.decoded(tokens, seconds)
                seconds, tokens = 0.0, 0
                if not rounds.stays_alone(len(log), drafter.behind):
                    break
    if tokens:
        rounds.decoded(tokens, seconds)
    if finish is None:
        await target.extend(len(log), [])  # it may have gone on meanwhile


class _DraftSession:
    """A drafter's session: opened in the background, and kept up with the log. `target` is connected before that.

    took_s: seconds of the last draft; with the session's opening if that had not begun before.
    choice: between sampled and greedy drafts for a sampled answer; None to draw drafts as the target does.
    sampled: the choice made; None if there was none.
    """

    def __init__(self, session: EndpointSession, target: EndpointSession, job: Job, log: TokenLog) -> None:
        self.session, self._target, self._job, self._log = session, target, job, log
        self._known = 0  # output tokens that it has got
        self._opening: asyncio.Task[None] | None = None
        self._open = self._awaited = False
        self.took_s = 0.0
        self.choice: DraftChoice | None = None
        self.sampled: bool | None = None

    @property
    def behind(self) -> int:
        """Tokens that the drafter has to read before it drafts; 0 if they are no more than a round's."""
        if not self.begun:
            return len(self._job.prompt) + len(self._log)
        missed = len(self._log) - self._known
        return missed if missed > MAX_WINDOW + 1 else 0

    @property
    def begun(self) -> bool:
        """Whether the session is open or being opened."""
        return self._opening is not None

    def begin(self) -> None:
        """Open the session at what the log says now."""
        self._known = len(self._log)
        self._opening = asyncio.get_running_loop().create_task(self._begin(tuple(self._log.ids)))

    async def _begin(self, log: tuple[int, ...]) -> None:
        probs = (await self.session.connect()).info.draft_probs and self._target.info.takes_probs
        if probs and self.choice is not None and not self._job.sampling.greedy:
            self.sampled = probs = self.choice.choose()
        await self.session.open(self._job.prompt, drafting(self._job.sampling, probs), log)

    async def opened(self) -> bool:
        """Wait for a moment until the session is open, once, if opening it has begun; else begin. Return whether it is,
        or cannot be opened: until then the target had better decode alone."""
        if self._opening is None:
            self.begin()
            return False
        if not self._opening.done() and not self._awaited:
            self._awaited = True
            await asyncio.wait((self._opening,), timeout=OPENING_S)
        return self._opening.done()

    async def ready(self) -> None:
        """Wait until the session is open; raises what went wrong with that."""
        if self._opening is None:
            self.begin()
        assert self._opening is not None
        if not self._opening.done():
            await asyncio.shield(self._opening)
        self._opening.result()
        self._open = True

    async def draft(self, gamma: int) -> Drafts:
        """Draft after the log's end, after sending the drafter the log's new tokens."""
        asked_s, begun = asyncio.get_running_loop().time(), self.begun
        if not self._open:
            await self.ready()
        waited_s = 0.0 if begun else asyncio.get_running_loop().time() - asked_s
        ids = self._log.ids
        position, self._known = self._known, len(ids)
        draft = await self.session.draft(position, ids[position:], gamma)
        self.took_s = waited_s + self.session.took_s
        return draft

    def forget(self) -> None:
        """Stop opening, if it still is; the session itself is the executor's to close."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())


def drafting(sampling: Sampling, probs: bool = True) -> Sampling:
    """Return the drafter's sampling: the client's, without what only the target decides.

    probs: whether the distributions of the drafts reach the target. If not, the target accepts a draft d with its own
        probability p(d) (Leviathan et al. 2023, with q a point mass): a draft drawn from q stands with Σ q·p, the
        likeliest one with about max p. So drafts are then greedy.

    The seed differs from the target's: rejection sampling is exact only if the coins that accept a token are
    independent of those that drew it. Tandem's engines keep them apart anyhow; another engine need not.
    """
    temperature = sampling.temperature if probs else 0.0
    seed = sampling.seed ^ DRAFT_SEED
    return msgspec.structs.replace(sampling, temperature=temperature, stop=(), logprobs=-1, seed=seed)
