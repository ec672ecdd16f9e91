"""Mode split (HAT): the device holds a model's two ends, the cloud its middle, and no token leaves the device.

The prompt goes up in chunks of hidden states, each sent while the cloud computes the one before. In a round the device
drafts with its adapter, the middle computes the draft's hidden states together with other devices' work, and the
device's head verifies the drafts and adds a token; meanwhile the device drafts on from the likeliest alternatives for
the last token. The device itself drives the request. A lost middle costs only its session: the device keeps its hidden
states and sends them to another. `policies.split.request` takes the decisions.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tandem.deployments.learning.report import Report
from tandem.deployments.modes.alone import by_target, learn_target
from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, RouterPart, Services, judged
from tandem.deployments.request.assignment import Endpoints, Prices, RoutingRequest
from tandem.deployments.request.job import Delta, Figures, Job
from tandem.deployments.request.pools import MIDDLE
from tandem.deployments.request.session import EndpointSession, EndpointSessions, Trip
from tandem.deployments.request.tokenlog import TokenLog
from tandem.deployments.request.uplink_queue import Sent, UplinkQueue
from tandem.engine.base import EngineError, EngineInfo, InvalidRequest, Sampling, SplitInfo, Tensor
from tandem.engine.config import PolicyChoice, Strict
from tandem.engine.split.base import Judgement, OuterEngine, OuterSession, SplitMismatch, check_fit
from tandem.engine.split.hidden_states import COMMON, Kind, back, row_bytes
from tandem.engine.split.loss import kept
from tandem.policies.routing.objectives import Leaves, Prediction
from tandem.policies.split import CloudMonitor, DeviceMonitor, Split, SplitPolicies, TokenBytes
from tandem.policies.split.chunking import ChunkingPolicy, chunking
from tandem.policies.split.drafting import DraftingPolicy, drafting
from tandem.policies.split.history import History, Kept
from tandem.policies.split.parallel_drafting import ParallelDraftingPolicy, parallel_drafting
from tandem.policies.split.wire import WireFormat, choose_format

CANDIDATES: tuple[Kind, ...] = (COMMON, "int8", "int6", "int4")
"""Kinds of hidden states that `wire: auto` chooses from."""
NOTHING = Tensor((0, 0), "float32", memoryview(b""))


class ChunkingChoice(PolicyChoice[ChunkingPolicy]):
    """A chunking policy."""

    family = chunking


class DraftingChoice(PolicyChoice[DraftingPolicy]):
    """A drafting policy."""

    family = drafting


class ParallelDraftingChoice(PolicyChoice[ParallelDraftingPolicy]):
    """A parallel drafting policy."""

    family = parallel_drafting


class SplitSettings(Strict):
    """A device with the two ends of a split model.

    chunking: policy that decides how many tokens of a prompt go up next.
    drafting: policy that decides whether to draft one more token.
    parallel_drafting: policy that decides what to draft while waiting for a verdict.
    wire: number format of hidden states on their way up; int8 has a scale per token, int6 and int4 an entropy code of
        about as many bits. With float32, greedy answers are the whole model's. auto: float16 or, on slower links, the
        smallest that has been measured to keep 99.5 % of the model's next tokens. A middle that does not take the
        format gets float16.
    turns: last requests whose hidden states middles are asked to keep, so that a conversation's next turn sends only
        what is new; 0: none.
    """

    chunking: ChunkingChoice = ChunkingChoice(name="fixed")
    drafting: DraftingChoice = DraftingChoice(name="threshold")
    parallel_drafting: ParallelDraftingChoice = ParallelDraftingChoice(name="hat")
    wire: Kind | Literal["auto"] = COMMON
    turns: int = Field(8, ge=0)

    @property
    def kind(self) -> Kind:
        """The format before the link is known."""
        return COMMON if self.wire == "auto" else self.wire


class PromptLeft(EngineError):
    """The request was not sent to the device that must keep its prompt."""

    code = "prompt_left_device"


@dataclass(slots=True)
class Splitting(Figures):
    """Figures of split inference.

    rounds: rounds in which the middle judged a draft.
    drafted: tokens drafted at the device.
    accepted: drafted tokens that the middle accepted.
    chunks: chunks in which the prompt was sent.
    branches: drafts made ahead, while the middle was waited for.
    branches_used: drafts made ahead that the middle's verdict then continued.
    up_bytes: bytes of hidden states sent to the cloud.
    down_bytes: bytes of hidden states sent to the device.
    kept: positions whose hidden states the middle had kept from an earlier request.
    """

    mode = "split"

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    chunks: int = 0
    branches: int = 0
    branches_used: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    kept: int = 0


class SplitRouter(RouterPart[SplitSettings]):
    """Learns how long answers of each middle take: the devices' own parts and their links are among it."""

    def predict(self, wanted: RoutingRequest, endpoints: Endpoints, prices: Prices) -> Prediction:
        return by_target(self.router, wanted, endpoints["middle"], prices)._replace(
            leaves=Leaves.HIDDEN_STATES
        )

    def learn(self, report: Report, taught: object) -> None:
        learn_target(self.router, report, SplitMode.name)


class SplitMode(Mode):
    """Send hidden states up, judge what comes down."""

    name = "split"
    roles = (EndpointRole("middle", MIDDLE),)
    section, settings = "split", SplitSettings
    router = SplitRouter
    figures = Splitting
    local = private = True
    takes_over = False

    def __init__(self, settings: SplitSettings, services: Services) -> None:
        self._device = None if services.outer is None else DeviceState(services.outer, settings)

    def check(self) -> None:
        self._here()

    def start(self, job: Job) -> ModeRun:
        return SplitRun(job, self._here())

    def _here(self) -> DeviceState:
        if self._device is None:
            raise PromptLeft(
                "mode split runs at the device itself: a prompt that came here has left it already"
            )
        return self._device


class DeviceState:
    """State shared by the requests at one device: the outer part, its policies, and the monitors of cloud, device and
    link."""

    def __init__(self, outer: OuterEngine, settings: SplitSettings) -> None:
        assert outer.info.split is not None
        self.outer, self._settings, self._here = outer, settings, outer.info.split
        self.history = History(settings.turns)
        self._cloud, self.link = CloudMonitor(), DeviceMonitor()
        self.uplink_queue = UplinkQueue(self.link)
        self._policies = SplitPolicies(
            settings.chunking.create(), settings.drafting.create(), settings.parallel_drafting.create()
        )

    @property
    def hidden(self) -> int:
        """Width of the hidden states."""
        return self._here.hidden

    def kind(self, middle: SplitInfo) -> Kind:
        """Return the kind of hidden states for a request to that middle."""
        wanted = self.outer.kind
        if self._settings.wire == "auto":
            taken = [kind for kind in CANDIDATES if kind in middle.takes]
            formats = [
                WireFormat(kind, row_bytes(self._here.hidden, kind), kept(self._here, kind)) for kind in taken
            ]
            chosen = choose_format(formats, self.link.up_bytes_s)
            return next(kind for kind in taken if kind == chosen)
        return wanted if wanted in middle.takes else COMMON

    def split(self, known: int, max_tokens: int, stages: int, kind: Kind) -> Split:
        """Return the decisions for a request with `known` tokens, a middle in `stages` stages, and such states."""
        return Split(
            known - 1,  # the last one goes with the first draft
            max_tokens,
            TokenBytes(row_bytes(self._here.hidden, kind), row_bytes(self._here.hidden, back(kind))),
            cloud=self._cloud,
            device=self.link,
            policies=self._policies,
            pipeline=stages,
        )


class SplitRun(ModeRun):
    """One session of the outer part, and one middle's after the other."""

    def __init__(self, job: Job, device: DeviceState) -> None:
        self.figures: Splitting = Splitting()
        self._job, self._device = job, device
        self._outer: OuterSession | None = None
        self._ready = 0  # tokens that are drafted already
        self._now = asyncio.get_running_loop().time

    async def run(
        self, sessions: EndpointSessions, log: TokenLog, briefing: object
    ) -> AsyncGenerator[Delta, None]:
        job, device = self._job, self._device
        if self._outer is None:
            self._outer = await device.outer.open(job.prompt, job.sampling, log.ids)
        outer, most = self._outer, job.sampling.max_tokens
        tokens = (*job.prompt, *log.ids)
        middle = _Middle(sessions["middle"], self.figures, device)
        at = middle.session.endpoint.key
        taken = device.history.take(at, tokens[:-1])
        handle = taken[0].handle if taken else secrets.token_hex(16)
        room = Sampling(
            max_tokens=len(job.prompt) + most,
            reader_rate=job.sampling.reader_rate,
            kept=handle if device.history.most else "",
        )
        await middle.open(room)
        _check_fit(device.outer.info, middle.session)
        await outer.rewind(0)
        there = taken[1] if taken and await middle.has(taken[1]) else 0
        if there:
            await outer.skip(there)
            self.figures.kept += there
        theirs = middle.session.info.split
        assert theirs is not None  # they fit
        outer.kind = device.kind(theirs)
        split = device.split(len(tokens) - there, most, theirs.stages, outer.kind)
        drafts = await self._prefill(split, outer, middle) or self._ready > 0
        with device.uplink_queue.rounds():
            while True:
                position = len(log)
                drafted, judgement = await self._round(split, outer, middle, position, drafts)
                drafts = True
                if judgement.verdict.finish is not None:
                    said = (*job.prompt, *log.ids, *judgement.verdict.ids)
                    device.history.keep(at, Kept(handle, said[: judgement.position]))
                yield judged(position, drafted, judgement.verdict)
                if judgement.verdict.finish is not None:
                    return

    async def _prefill(self, split: Split, outer: OuterSession, middle: _Middle) -> bool:
        """Send all of prompt and log but the last token to the middle, and return whether the first round may draft.

        The last chunk goes with that token in one step, which a first draft would only delay.
        """
        with self._device.uplink_queue.prompt(self):
            while size := split.next_chunk():
                if not split.prompt_left:
                    self.figures.chunks += 1
                    return False
                chunk = await outer.shallow(size)
                await self._device.uplink_queue.turn(self, split.prompt_left)
                middle.send(chunk.position, chunk.hidden, 0)
                self.figures.chunks += 1
                await middle.received(split, split.under_way - 1)
        return True

    async def _round(
        self, split: Split, outer: OuterSession, middle: _Middle, position: int, drafts: bool
    ) -> tuple[int, Judgement]:
        """Do one round; return the number of tokens drafted, and the model's judgement. drafts: whether to draft."""
        figures, ready = self.figures, self._ready
        split.begin(position)

        def go_on(probability: float) -> bool:
            split.drafted(probability)
            return split.draft_on(ready > split.draft)

        began_s = self._now()
        longest = self._job.sampling.max_tokens if drafts and split.draft_on(ready > 0) else 0
        proposal = await outer.propose(longest, go_on)
        drafted = self._ready = len(proposal.ids)
        for probability in proposal.probabilities[split.draft :]:  # with which the draft ended anyhow
            split.drafted(probability)
        sent_s = self._now()
        if drafts:  # otherwise that was the prompt
            split.computed(max(0, drafted - ready), sent_s - began_s)
        middle.send(proposal.position, proposal.hidden, proposal.wanted)
        branches, steps = split.ahead()
        if branches:
            branches = await outer.branch(branches, steps)
            figures.branches += branches
        deep = await middle.received(split, 0)
        judgement = await outer.judge(deep)
        if judgement.steps:
            split.drafted_ahead(branches, judgement.steps_s / judgement.steps)
        self._ready, accepted = judgement.ready, judgement.verdict.accepted
        if drafts:
            split.judged(accepted, self._now() - max(sent_s, middle.before_s))
        figures.rounds += 1
        figures.drafted += drafted
        figures.accepted += accepted
        figures.branches_used += judgement.ready > 0
        return drafted, judgement

    def close(self) -> Coroutine[None, None, None] | None:
        return None if self._outer is None else _cancel(self._outer)


class _Middle:
    """Session at the middle: its traffic, and what that tells about link and cloud.

    before_s: when the answer before the last one arrived.
    """

    def __init__(self, session: EndpointSession, figures: Splitting, device: DeviceState) -> None:
        self.session, self._figures = session, figures
        self._link, self._uplink_queue = device.link, device.uplink_queue
        self._hidden = device.hidden
        self._sent = deque[Sent]()
        self.before_s = self._came_s = 0.0
        self._free_s = 0.0  # the uplink is from then on

    async def open(self, room: Sampling) -> None:
        await self.session.open((), room)
        self._link.note_rtt(self.session.took_s)  # there is nothing to compute yet

    async def has(self, positions: int) -> bool:
        """Whether it has kept the states of the first `positions` positions."""
        try:
            await self.session.forward(positions, Tensor((0, self._hidden), COMMON, NOTHING.data), 0)
        except InvalidRequest:
            return False
        return True

    def send(self, position: int, hidden: Tensor, wanted: int) -> None:
        self._figures.up_bytes += hidden.data.nbytes
        self._sent.append(self._uplink_queue.sent(self, hidden.data.nbytes))
        self.session.send(position, hidden, wanted)

    async def received(self, split: Split, under_way: int) -> Tensor:
        """Receive answers until at most `under_way` are in flight; return the last one's hidden states."""
        last = NOTHING
        while self.session.on_their_way > under_way:
            trip = await self.session.receive()
            sent = self._sent.popleft()
            self._uplink_queue.arrived(sent)
            last = trip.forwarded.hidden
            self.before_s, self._came_s = self._came_s, trip.came_s
            self._figures.down_bytes += last.data.nbytes
            if trip.forwarded.batch_tokens:
                split.answered(trip.forwarded.batch_tokens, trip.forwarded.batch_s)
                self._crossed(split, trip, sent)
        return last

    def _crossed(self, split: Split, trip: Trip, sent: Sent) -> None:
        """Record as link time what was neither waiting nor work at the middle, since the states before had gone up;
        unless those of another request went before."""
        came_s = trip.came_s - trip.forwarded.took_s
        if sent.clear:
            split.crossed(trip.rows, trip.forwarded.hidden.shape[0], came_s - max(trip.sent_s, self._free_s))
        self._free_s = came_s - self._link.rtt_s


def _check_fit(outer: EngineInfo, middle: EndpointSession) -> None:
    """Raises EndpointLost for one whose part is not what the router was told: another may fit."""
    try:
        check_fit(outer, middle.info)
    except SplitMismatch as error:
        raise middle.unfit(str(error)) from error


async def _cancel(outer: OuterSession) -> None:
    with suppress(EngineError):  # it is gone with its engine
        await outer.cancel()
