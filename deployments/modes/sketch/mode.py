"""Mode sketch (PICE): the target writes a sketch of the answer, small models write the sentences from it, in parallel.

The target first states the expected length of the answer. If a sketch is worth it, it writes one, and the router
assigns places at devices and expanders; each writes its sentences in a few groups, which it computes together.
Sentences go to the reader in the sketch's order as they are decided. The target writes sentences that no endpoint can
expand, and answers in full from the start if that is better. `policies.sketch` takes the decisions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import msgspec

from tandem.deployments.modes.base import EndpointRole, Mode, ModeRun, Services
from tandem.deployments.modes.sketch.expansion import UNSEEN_RATE, Expansion, expanding_devices
from tandem.deployments.modes.sketch.opening import IDLE, Opening
from tandem.deployments.modes.sketch.questions import (
    NAME,
    Expanders,
    PlanRequest,
    SketchBriefing,
    SketchPlan,
    SketchTaught,
)
from tandem.deployments.modes.sketch.scheduler import Expansions
from tandem.deployments.modes.sketch.settings import SketchOptions, SketchSettings
from tandem.deployments.modes.sketch.verification import DoubtsByModel
from tandem.deployments.modes.sketch.writing import Writer
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.job import Delta, Figures, Job, UnknownMode
from tandem.deployments.request.pools import DRAFTER, VERIFIER
from tandem.deployments.request.session import EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import ContextOverflow, Grammar, Sampling
from tandem.engine.sketch.base import Extent, Question, Sketch, SketchFormat
from tandem.policies.estimators.moving_average import MovingAverage
from tandem.policies.sketch.doubts import Doubts
from tandem.policies.sketch.sketch_length import Reason

LEAST_SKETCH = 48
"""Tokens that any sketch may have, its length included."""
SKETCH_ROOM = 2.0
"""Factor on its planned length beyond which a sketch counts as endless."""
ANSWER_TOKENS = 300.0
"""Tokens of an answer from a target that cannot tell, until some were seen."""
ASK_AGAIN_S = 10.0
"""Seconds for which no target is asked for a length after no answer could be worth a sketch."""
INDIVISIBLE, NO_ROOM = "indivisible", "no_room"
SHORT = Reason.SHORT.name.lower()
UNSUITABLE = Reason.UNSUITABLE.name.lower()
ENDLESS, NO_LIST, LOST = "endless", "no_list", "lost"
"""Why there is no sketch, beside the reasons of policies; and why one is of no use."""


@dataclass(slots=True)
class Sketched(Figures):
    """Figures of sketching and expanding.

    sketches: sketches that were expanded.
    tokens: tokens of these sketches, as the target wrote them.
    expected_tokens: tokens that the target expected of the expanded answers.
    notes: short sentences in the sketches.
    own: first sentences that the target was to write itself, as its sketches were shorter than planned.
    openings: first sentences that the target began while it wrote the sketch.
    groups: sequences in which an endpoint wrote sentences one after the other, over all candidates.
    candidates: expansions of a sentence to choose from, summed over the sentences.
    verified: sentences of other endpoints whose likelihood the target has computed.
    rewritten: sentences that the target wrote, as no expansion was good enough, or as it doubted them.
    drafted, accepted: tokens drafted in the target's own parts, sketches included, and those that it accepted.
    moved: expansions that continued elsewhere after an endpoint failed.
    finished: answers that the target finished, as no endpoint was left to expand them.
    in_full: answers that the target wrote in full, by reason: `off`, `unsuitable`, `short`, `no_device`, `queue_full`,
        `slow`, `indivisible`, `no_room`, `no_list`, `endless`, or `lost` with the endpoint that wrote the sketch.
    """

    mode = "sketch"
    counters: ClassVar[Mapping[str, str]] = {
        "sketches": "Answers in mode sketch, by what became of the sketch"
    }

    sketches: int = 0
    tokens: int = 0
    expected_tokens: int = 0
    notes: int = 0
    own: int = 0
    openings: int = 0
    groups: int = 0
    candidates: int = 0
    verified: int = 0
    rewritten: int = 0
    drafted: int = 0
    accepted: int = 0
    moved: int = 0
    finished: int = 0
    in_full: Counter[str] = field(default_factory=Counter)

    def counted(self) -> Iterator[tuple[str, str, float]]:
        yield "sketches", "expanded", self.sketches - self.finished
        yield "sketches", "finished_by_target", self.finished
        for reason, count in self.in_full.items():
            yield "sketches", reason, count


class SketchMode(Mode):
    """The target writes a sketch, small models expand it in parallel."""

    name = NAME
    roles = (
        EndpointRole("target", VERIFIER),
        EndpointRole("drafter", DRAFTER, needed=False, expendable=True),
    )
    briefing = SketchBriefing
    section, settings, options = NAME, SketchSettings, SketchOptions
    router = Expansions
    takes_over = False
    figures = Sketched
    afar = False  # places are the router's

    def __init__(self, settings: SketchSettings, services: Services) -> None:
        self._settings, self._format, self._expanders = settings, services.format, Expanders(services)
        self._speculation = SpeculativeMode(SpeculativeSettings(), services)
        self._seen = Seen()
        self._shortest = settings.sketching.create().shortest

    def check(self) -> None:
        self._here()

    def suits(self, job: Job) -> bool:
        question = job.question or Question(job.prompt)
        return self._format is not None and divisible(job.sampling) and self._settings.suitable(question)

    def start(self, job: Job) -> ModeRun:
        format, writer = self._here(), Writer(self._speculation, self._seen.target_token_s)
        return SketchRun(job, self._settings, format, self._expanders, self._seen, self._shortest, writer)

    def _here(self) -> SketchFormat:
        if self._format is None:
            raise UnknownMode("sketches are not made here")
        return self._format


@dataclass(slots=True)
class Seen:
    """State shared by the requests of one process.

    target_token_s: the target's seconds per token.
    answer_tokens: tokens of the target's own answers to questions whose answers can be sketched.
    hopeless_s: until when no answer is worth a sketch, on the event loop's clock; None if some are.
    why: the reason for which none is.
    doubts: of the target, about each small model's sentences.
    """

    target_token_s: MovingAverage = field(default_factory=MovingAverage)
    answer_tokens: MovingAverage = field(default_factory=partial(MovingAverage, ANSWER_TOKENS))
    hopeless_s: float | None = None
    why: str = ""
    doubts: DoubtsByModel = field(default_factory=lambda: DoubtsByModel(Doubts))

    def worth_asking(self, now_s: float) -> bool:
        """Whether to ask how long an answer will be; after a time in which it was not, one request tries."""
        if self.hopeless_s is None:
            return True
        if now_s < self.hopeless_s:
            return False
        self.hopeless_s = now_s + ASK_AGAIN_S
        return True


class SketchRun(ModeRun):
    """seen: by all requests in this process.
    shortest: tokens; an answer that can only be shorter is not sketched.
    """

    def __init__(
        self,
        job: Job,
        settings: SketchSettings,
        format: SketchFormat,
        expanders: Expanders,
        seen: Seen,
        shortest: int,
        writer: Writer,
    ) -> None:
        self.figures: Sketched = Sketched()
        self._began_s = asyncio.get_running_loop().time()
        self._job, self._settings, self._seen, self._shortest = job, settings, seen, shortest
        self._options = job.asked(SketchOptions)
        self._format, self._expanders, self._writer = format, expanders, writer
        self._question = job.question or Question(job.prompt)
        self._prompt: list[int] | None = None  # for the sketch
        self._extent: Extent | None = None  # that was asked for
        self._expected = 0  # tokens of the answer
        self._written: list[int] = []  # of the sketch
        self._lines = 0  # of it, that were shown
        self._shown = job.log.origins.count(Origin.SKETCH)  # tokens of the log that these are
        self._plan: SketchPlan | None = None
        self._opening: Opening | None = None
        self._expansion: Expansion | None = None
        self._in_full, self._suits = bool(job.log), False

    async def run(
        self, sessions: EndpointSessions, log: TokenLog, briefing: object
    ) -> AsyncGenerator[Delta, None]:
        self._writer.assigned(sessions, briefing)
        self._resume()
        try:
            if self._expansion is None and not self._in_full:
                async with aclosing(self._sketch(sessions, log)) as lines:
                    async for delta in lines:
                        yield delta
            whole = self._expansion is None or self._expansion.given_up
            parts = self._decode(log) if whole else self._expand(sessions, log)
            async with aclosing(parts) as deltas:
                async for delta in deltas:
                    self.figures.drafted, self.figures.accepted = self._writer.drafts
                    yield delta
        finally:
            if self._opening is not None:
                await self._opening.close()

    def _resume(self) -> None:
        """Go on with another target: a sentence that was broken off is its to end, and so is all that follows."""
        opening = self._opening
        if opening is None or opening.whole:
            return
        self._opening = None
        if opening.said and self._expansion is None:
            self._refuse(LOST)
        elif opening.said and self._expansion is not None:
            self._expansion.given_up = True
            self.figures.finished += 1

    # -- the sketch ------------------------------------------------------------------------------------------

    async def _sketch(self, sessions: EndpointSessions, log: TokenLog) -> AsyncGenerator[Delta, None]:
        """Have the target write the sketch. Afterwards there is an expansion, or the answer is to be in full."""
        format = self._format
        if self._prompt is None and (reason := await self._asking()):
            self._refuse(reason)
            return
        sketch, reason = Sketch(), ""
        while self._prompt is not None:
            sampling = _of_sketch(self._job.sampling, format.sketch_form(self._extent))
            job = replace(self._job, prompt=tuple(self._prompt), sampling=sampling)
            again = None
            async with aclosing(self._within_context(self._writer.write(job, self._written))) as stream:
                async for tokens in stream:
                    self._written += tokens.ids
                    sketch = self._read(tokens.finish)
                    if reason := await self._objection(sketch, tokens.finish):
                        break
                    if (again := self._otherwise()) or self._enough(sketch, tokens.finish):
                        break
                    if self._options.show_sketch and (
                        ids := self._new_lines(sketch, tokens.finish is not None)
                    ):
                        ids, finish = cut(ids, format.end, self._job.sampling, len(log))
                        self._shown += len(ids)
                        yield Delta(ids, [Origin.SKETCH] * len(ids), finish, position=len(log))
                    if self._opening is None:
                        self._open(sessions, sketch)
                    elif more := self._opening.fresh():
                        yield self._opened(more, log)
            await self._writer.stop()
            if again is None:
                break
            self._prompt, self._written = again, []
        if self._in_full:
            return
        if reason:
            self._refuse(reason)
        else:
            self._begin_expansion(sketch)

    async def _within_context(self, sketch: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
        """Yield the sketch; nothing where its prompt, which is longer than the question, overflows the context."""
        async with aclosing(sketch) as deltas:
            try:
                async for delta in deltas:
                    yield delta
            except ContextOverflow:
                self._refuse(NO_ROOM)

    def _open(self, sessions: EndpointSessions, sketch: Sketch) -> None:
        """Have the target begin with the first sentence, if it can by now."""
        if self._plan is None or self._plan.load >= IDLE or not sketch.notes or self._options.show_sketch:
            return
        prompt = self._format.opening(self._question, sketch.notes[0])
        if prompt is not None:
            session = sessions.at(sessions["target"].endpoint)
            self._opening = Opening(self._format, self._question, session)
            self._opening.begin(prompt, self._job.sampling)

    def _drop_opening(self) -> None:
        """Stop what has begun too late to be of use."""
        if self._opening is not None:
            self._opening.stop()
            self._opening = None

    def _opened(self, ids: list[int], log: TokenLog) -> Delta:
        """Return the delta of tokens of the first sentence."""
        ids, finish = cut(ids, self._format.end, self._job.sampling, len(log))
        return Delta(ids, [Origin.CLOUD] * len(ids), finish, position=len(log))

    async def _asking(self) -> str:
        """Find the prompt for the sketch; return why there is none, "" if there is."""
        reason, extent = self._ruled_out(), None
        if not reason and not self._format.states_length:
            extent, reason = await self._wanted()
        if not reason:
            self._extent = extent
            self._prompt = self._format.sketch(self._question, extent) or self._format.sketch(self._question)
        return reason

    def _read(self, finish: str | None) -> Sketch:
        """Return the sketch so far, with the length that was expected if it states none."""
        sketch = self._format.read(self._written, finish == "stop")
        if self._format.states_length or self._extent is None:
            return sketch
        return replace(sketch, expected=self._extent.answer)

    def _otherwise(self) -> list[int] | None:
        """Return the prompt for a sketch of the planned length, once the model has stated the answer's; None if it may
        go on as it does."""
        if self._plan is None or self._extent is not None or self._lines:
            return None
        self._extent = Extent(self._plan.sketch, self._expected)
        return self._format.sketch(self._question, self._extent)

    def _ruled_out(self) -> str:
        """Return why there is no sketch, as far as this process can tell; "" otherwise."""
        if self._format.sketch(self._question) is None or not divisible(self._job.sampling):
            return INDIVISIBLE
        if not self._settings.suitable(self._question):
            return UNSUITABLE
        self._suits = True
        if self._job.sampling.max_tokens < self._shortest:
            return SHORT
        if not self._seen.worth_asking(asyncio.get_running_loop().time()):
            return self._seen.why
        return ""

    async def _wanted(self) -> tuple[Extent | None, str]:
        """Return how much of a sketch is wanted from a target that cannot tell how long its answer will be, or why none
        is. Answers to such questions are taken to be as long as those before."""
        expected = min(self._job.sampling.max_tokens, round(self._seen.answer_tokens.value))
        self._plan = await self._planned(expected)
        self._note_hope(self._plan)
        if not self._plan.sketch:
            return None, self._plan.reason
        return Extent(self._plan.sketch, expected), ""

    def _note_hope(self, plan: SketchPlan) -> None:
        """Remember whether any answer is worth a sketch."""
        if not plan.hopeless:
            self._seen.hopeless_s = None
        elif not self._options.min_quality and expanding_devices(self._job) is None:
            self._seen.hopeless_s = asyncio.get_running_loop().time() + ASK_AGAIN_S
            self._seen.why = plan.reason

    def _begin_expansion(self, sketch: Sketch) -> None:
        assert self._plan is not None
        sketch = replace(sketch, tokens=len(self._written))
        self._expansion = Expansion(
            self._job, sketch, self._plan, self._format, self._expanders, self.figures, self._seen.doubts
        )
        if self._opening is not None and self._opening.begun:
            self._expansion.opened()
            self.figures.openings += 1
        else:
            self._drop_opening()
        self.figures.sketches += 1
        self.figures.tokens += len(self._written)
        self.figures.expected_tokens += sketch.expected or 0
        self.figures.notes += len(sketch.notes)

    async def _objection(self, sketch: Sketch, finish: str | None) -> str:
        """Return why the target must answer in full after what it has written so far; "" if it need not."""
        if self._plan is None and (sketch.expected is not None or len(sketch.notes) > 1):
            most = self._job.sampling.max_tokens
            self._expected = min(most, sketch.expected or most)
            self._plan = await self._planned(self._expected)
            self._note_hope(self._plan)
            if not self._plan.sketch:
                return self._plan.reason
        if finish == "stop":
            return NO_LIST if self._plan is None or len(sketch.notes) < 2 else ""
        if self._enough(sketch, finish):
            return ""
        return ENDLESS if finish is not None or self._too_long() else ""

    def _too_long(self) -> bool:
        """Return whether the sketch is longer than any should be."""
        room = LEAST_SKETCH if self._plan is None else max(LEAST_SKETCH, SKETCH_ROOM * self._plan.sketch)
        return len(self._written) > room

    def _enough(self, sketch: Sketch, finish: str | None) -> bool:
        """Return whether an ordinary model's sketch, though too long, is taken as it is: it has cost too much."""
        long = finish == "length" or self._too_long()
        return long and not self._format.states_length and len(sketch.notes) > 1

    async def _planned(self, expected: int) -> SketchPlan:
        job = self._job
        return await self._expanders.plan(
            PlanRequest(
                request=job.id,
                expected=expected,
                target_token_s=self._seen.target_token_s.value or self._writer.pace_s,
                speculates=self._writer.speculates,
                min_quality=self._options.min_quality,
                devices=expanding_devices(job),
            )
        )

    def _refuse(self, reason: str) -> None:
        self._in_full = True
        self.figures.in_full[reason] += 1
        self._drop_opening()

    def _new_lines(self, sketch: Sketch, last: bool) -> list[int]:
        """Return the tokens to show for new notes, and after the last one."""
        format = self._format
        ids = [token for note in sketch.notes[self._lines :] for token in format.line(note)]
        self._lines = len(sketch.notes)
        return ids + format.gap() if last else ids

    # -- the answer -------------------------------------------------------------------------------------------

    async def _expand(self, sessions: EndpointSessions, log: TokenLog) -> AsyncGenerator[Delta, None]:
        """Yield the answer as its sentences are expanded, one after the other."""
        job, expansion, end = self._job, self._expansion, self._format.end
        assert expansion is not None
        with sessions.step("expansion"):
            async with expansion.at(sessions):
                if (opening := self._opening) is not None:
                    async with aclosing(opening.rest()) as parts:
                        async for more in parts:
                            yield self._opened(more, log)
                    expansion.given_up = not opening.whole
                    expansion.told(opening.said)
                    self._opening = None
                while not expansion.given_up and (ids := await expansion.next()) is not None:
                    if expansion.whole:
                        ids = [*ids, end]
                    ids, finish = cut(ids, end, job.sampling, len(log))
                    yield Delta(ids, [Origin.EXPANSION] * len(ids), finish, position=len(log))
                    if finish is not None:
                        return
        self.figures.finished += 1
        async with aclosing(self._decode(log)) as deltas:
            async for delta in deltas:
                yield delta

    async def _decode(self, log: TokenLog) -> AsyncGenerator[Delta, None]:
        """Let the target continue by itself. A sketch that was shown is not part of its answer."""
        job, shown = self._job, self._shown
        room = msgspec.structs.replace(
            job.sampling,
            max_tokens=job.sampling.max_tokens - shown,
            waited_s=asyncio.get_running_loop().time() - self._began_s if self._written else 0.0,
        )
        async with aclosing(self._writer.write(replace(job, sampling=room), log.ids[shown:])) as deltas:
            async for delta in deltas:
                if delta.finish is not None and self._suits and self._expansion is None:
                    self._seen.answer_tokens.note(len(log) - shown + len(delta.ids))
                yield replace(delta, position=len(log))

    def report(self) -> SketchTaught:
        figures = self.figures
        sentences = max(0, figures.notes - figures.openings - figures.own)
        return SketchTaught(self._writer.report(), sentences, figures.verified, figures.rewritten)


def divisible(sampling: Sampling) -> bool:
    """Whether an answer can be written in parts, each without sight of the others."""
    whole = sampling.changes_logits or sampling.ignore_eos or sampling.forced or sampling.grammar is not None
    return sampling.logprobs < 0 and not whole


def cut(ids: list[int], end: int, sampling: Sampling, sent: int) -> tuple[list[int], str | None]:
    """Return the ids that belong to an answer of which `sent` tokens were sent, and why it then ends."""
    room = sampling.max_tokens - sent
    ends = {end, *sampling.stop_tokens}
    for n, token in enumerate(ids[:room], 1):
        if token in ends:
            return ids[:n], "stop"
    return (ids[:room], "length") if len(ids) >= room else (ids, None)


def _of_sketch(sampling: Sampling, form: Grammar | None) -> Sampling:
    """Return a sketch's sampling: the answer's stops do not end it, it is shorter, and may have a form."""
    most = max(1, sampling.max_tokens // 2)
    return msgspec.structs.replace(
        sampling, max_tokens=most, stop=(), stop_tokens=(), reader_rate=UNSEEN_RATE, grammar=form
    )
