"""A sketch's expansion: its sentences are written at places elsewhere, a few at once, and go out in order."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import msgspec

from tandem.deployments.modes.sketch.questions import Expanders, Place, PlaceReport, PlaceRequest, SketchPlan
from tandem.deployments.modes.sketch.settings import SketchOptions
from tandem.deployments.modes.sketch.verification import IDLE, Claim, DoubtsByModel, Verification
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.deployments.request.session import EndpointSession, EndpointSessions
from tandem.engine.base import EngineError, Sampling
from tandem.engine.sketch.base import Question, Sketch, SketchFormat
from tandem.policies.reader.quality import Reader
from tandem.policies.routing.collaboration import ANY_DEVICE
from tandem.policies.sketch.confidence import WEIGHTS, Candidate, best
from tandem.policies.sketch.merging import Groups, merge, merge_for_reader

LONGEST = 4.0
"""Factor on its expected length beyond which a sentence counts as endless."""
CHECKED = 0.5
"""Share of its time after which an expansion without the next sentence is held against the target's pace."""
LOOK_S = 0.05
"""Shortest interval at which that is done again."""
LEAST_TOKENS = 24
"""Least limit of a sentence's tokens."""
UNSEEN_RATE = 50.0
"""Tokens/s of sentences that are not read as they come: too fast for an engine to delay them for a full buffer, and
slow enough to leave room for others."""
OTHER_TEMPERATURE = 0.7
"""Temperature of further candidates if the first is greedy: they would be equal."""


class Counts(Protocol):
    """Counters of an expansion: see `deployments.modes.sketch.Sketched`."""

    own: int
    groups: int
    candidates: int
    verified: int
    rewritten: int
    moved: int


@dataclass(frozen=True, slots=True)
class Written:
    """A sentence that a model wrote.

    ids: its tokens, in the target's vocabulary.
    text: its text.
    log_probability: sum of its tokens' log-probabilities by that model; None: not known.
    model: that wrote it.
    """

    ids: list[int]
    text: str
    log_probability: float | None = None
    model: str = ""


class _Sentence:
    """Sentence of the answer. note: its note in the sketch, as text; written: candidates by number, None: unusable."""

    __slots__ = ("note", "written")

    def __init__(self, note: str) -> None:
        self.note = note
        self.written: dict[int, Written | None] = {}


class Expansion:
    """Expansion of one answer. It outlives the loss of endpoints, the target's included: written text stays.

    Of a sketch that is shorter than planned, the target writes as many of the first sentences itself as make up for it.
    If it has room, it also says how likely the others' sentences are, and writes those that it doubts, in the time that
    is left of what it would have needed for all of them.

    given_up: whether no endpoint is left to expand it, or the target will be quicker.
    """

    def __init__(
        self,
        job: Job,
        sketch: Sketch,
        plan: SketchPlan,
        format: SketchFormat,
        expanders: Expanders,
        counts: Counts,
        doubts: DoubtsByModel,
    ) -> None:
        self.given_up = self._behind = False
        self._job, self._sketch, self._plan = job, sketch, plan
        self._question = job.question or Question(job.prompt)
        self._format, self._expanders, self._counts = format, expanders, counts
        self._sentences = [_Sentence(self._format.text(note)) for note in sketch.notes]
        self._next = 0  # sentence that goes out
        self._told: set[str] = set()  # texts that have gone out
        self._said: list[int] = []  # tokens that have
        self._verification = Verification(job, doubts)
        self._verified: dict[int, Written] = {}  # by sentence
        self._corrections: dict[int, asyncio.Task[Written | None]] = {}  # that the target writes, by sentence
        self._lost: list[str] = []
        self._at: dict[int, str] = {}  # by candidate, the endpoint that computes it
        self._news = asyncio.Event()
        self._reader = Reader(job.sampling.reader_rate) if job.sampling.reader_rate else None
        self._now = asyncio.get_running_loop().time
        self._placed_s: float | None = None  # since when it has a place
        self._due_s = (
            self._now() + plan.budget_s if plan.bounded else inf
        )  # when the target would be at the end
        expected = sketch.expected or job.sampling.max_tokens
        self._sentence_tokens = max(1, expected // len(self._sentences))
        spare = plan.sketch - sketch.tokens if sketch.tokens else 0
        self._own = min(max(0, spare // self._sentence_tokens), len(self._sentences) - 1)
        counts.own += self._own

    @property
    def whole(self) -> bool:
        """Whether all sentences have gone out."""
        return self._next == len(self._sentences)

    def opened(self) -> None:
        """Leave the first sentence to the target, which has begun it."""
        self._own, self._next = max(1, self._own), 1

    def told(self, ids: Sequence[int]) -> None:
        """Take in the sentence that the target has begun, once it has gone out."""
        self._told.add(self._format.text(ids).casefold())
        self._said += ids
        if self._reader is not None:
            self._reader.deliver(len(ids), self._now())

    @asynccontextmanager
    async def at(self, sessions: EndpointSessions) -> AsyncGenerator[None, None]:
        """Have candidates written at the places of an assignment's sessions, within the context."""
        self._sessions, self._vocabulary = sessions, sessions["target"].endpoint.vocabulary
        self._judge = sessions.at(sessions["target"].endpoint)
        work = [asyncio.create_task(self._candidate(k)) for k in range(self._plan.candidates)]
        for task in work:
            task.add_done_callback(lambda _: self._news.set())
        self._work = work
        try:
            yield
        finally:
            await _ended([*work, *self._corrections.values()])
            self._corrections.clear()

    async def next(self) -> list[int] | None:
        """Return the next sentence's tokens; None if no endpoint is left to write it, and the target must finish."""
        sentence = self._sentences[self._next]
        own = self._next < self._own
        while not own and not self._decidable(sentence):
            if all(task.done() for task in self._work):
                for task in self._work:
                    task.result()  # a fault of our own is no bad luck
                if not sentence.written:
                    self.given_up = True
                    return None
                break
            self._news.clear()
            limit_s = self._patience_s(sentence)
            try:
                async with asyncio.timeout(limit_s):
                    await self._news.wait()
            except TimeoutError:
                if any(sentence.written.values()):
                    break
                if self._late():
                    self.given_up = True
                    return None
        chosen = self._best(sentence)
        if chosen is None:
            self._counts.rewritten += not own
            chosen = await self._rewritten(self._next)
            if chosen is None:
                self.given_up = True
                return None
        elif not own and self._plan.load < IDLE:
            chosen = await self._corrected(chosen)
        self._counts.candidates += len(sentence.written)
        self._told.add(chosen.text.casefold())
        ids = self._format.sentence(self._question, chosen.ids, self._next)
        self._said += ids
        self._next += 1
        if self._reader is not None:
            self._reader.deliver(len(ids), self._now())
        return ids

    # -- which candidate --------------------------------------------------------------------------------------

    def _decidable(self, sentence: _Sentence) -> bool:
        return len(sentence.written) == self._plan.candidates

    def _patience_s(self, sentence: _Sentence) -> float | None:
        """Return how long to wait for news; None: without limit. For further candidates once there is a good one, while
        the reader has unread text; for a first one, until it is time to see whether the target would be quicker."""
        now_s = self._now()
        dry_s = 0.0 if self._reader is None else self._reader.dry_s(now_s)
        if any(sentence.written.values()):
            return None if self._reader is None else dry_s
        if not self._plan.bounded or self._placed_s is None:
            return None
        check_s = CHECKED * self._plan.budget_s
        return max(self._placed_s + check_s - now_s, CHECKED * check_s, LOOK_S, dry_s)

    def _late(self) -> bool:
        """Return whether the target, going on from here, would be at the end before the expansion, at its pace so
        far."""
        assert self._placed_s is not None
        elapsed_s = self._now() - self._placed_s
        theirs = self._sentences[self._own :]
        there = sum(any(sentence.written.values()) for sentence in theirs) / len(theirs)
        self._behind = not there or elapsed_s / there > elapsed_s + self._target_s
        return self._behind

    @property
    def _target_s(self) -> float:
        """Return the seconds that the target would take for what has not gone out; infinite if that is no reason to let
        it."""
        if not self._plan.bounded:
            return inf
        return (1 - self._next / len(self._sentences)) * self._plan.full_s

    def _best(self, sentence: _Sentence) -> Written | None:
        """Return the best candidate that says something new, or None. Probabilities count only if all models report
        them."""
        good = [
            written
            for written in sentence.written.values()
            if written and written.text.casefold() not in self._told
        ]
        if len(good) < 2:
            return good[0] if good else None
        weights = WEIGHTS
        if any(written.log_probability is None for written in good):
            weights = weights.without_probability()
        candidates = [Candidate(each.text, len(each.ids), each.log_probability or 0.0) for each in good]
        return good[best(candidates, sentence.note, self._sentence_tokens, weights)]

    # -- whether it is true ------------------------------------------------------------------------------------

    @property
    def _left_s(self) -> float:
        """Return the seconds that verification may still take."""
        now_s = self._now()
        return max(self._due_s - now_s, 0.0 if self._reader is None else self._reader.dry_s(now_s))

    async def _corrected(self, chosen: Written) -> Written:
        """Return the next sentence as the target has it, if it doubts this one and there is time."""
        if self._verified.get(self._next) is not chosen and not self._verification.over:
            await self._verify(chosen)
        correction = self._corrections.get(self._next)
        if correction is None or self._verified[self._next] is not chosen:
            return chosen
        try:
            async with asyncio.timeout(_limit(self._left_s)):
                other = await correction
        except TimeoutError:
            return chosen
        if other is None or other.text.casefold() in self._told:
            return chosen
        self._counts.rewritten += 1
        return other

    async def _verify(self, chosen: Written) -> None:
        """Have the target judge the next sentence and those after it that are there, and write those that it doubts."""
        there = {self._next: chosen}
        for i in range(self._next + 1, len(self._sentences)):
            sentence = self._sentences[i]
            if not self._decidable(sentence) or (best := self._best(sentence)) is None:
                break
            there[i] = best
        claims = [
            Claim(each.model, self._format.sentence(self._question, each.ids, i)) for i, each in there.items()
        ]
        following = len(self._sentences) - self._next - len(there)
        doubted = await self._verification.doubted(
            self._judge, self._said, claims, _limit(self._left_s / 2), following * self._sentence_tokens
        )
        self._counts.verified += len(doubted)
        token_s = self._plan.full_s / max(1, self._sketch.expected or 1) if self._plan.bounded else 0.0
        for (i, written), wrong in zip(there.items(), doubted, strict=False):
            self._verified[i] = written
            if wrong and self._sentence_tokens * token_s < self._left_s:
                self._corrections[i] = asyncio.create_task(self._correction(i))

    async def _correction(self, i: int) -> Written | None:
        """Have the target write a sentence beside other work of it; None if it cannot."""
        session = self._sessions.at(self._sessions["target"].endpoint)
        try:
            written, _ = await self._written(session, i, 0)
            await session.close()
        except EngineError:
            return None
        return written

    # -- how they are written ---------------------------------------------------------------------------------

    async def _candidate(self, number: int) -> None:
        """Have one candidate of every sentence written, wherever there is a place."""
        while missing := self._missing(number):
            place = await self._expanders.place(
                PlaceRequest(
                    id=(id := secrets.randbits(63)),
                    request=self._job.id,
                    tokens=len(missing) * self._sentence_tokens,
                    dry_s=0.0 if self._reader is None else self._reader.dry_s(self._now()),
                    wait_s=self._plan.full_s,
                    lost=tuple(self._lost),
                    beside=tuple(at for k, at in self._at.items() if k != number),
                    model=self._plan.model or None if number == 0 else None,
                    share=self._plan.share,
                    budget_s=self._plan.budget_s,
                    target_s=self._target_s,
                    min_quality=self._job.asked(SketchOptions).min_quality,
                    devices=expanding_devices(self._job),
                )
            )
            if place is None:
                return
            self._at[number] = place.endpoint.key
            self._placed_s = self._now()
            self._news.set()
            await self._write(id, place, number, missing)

    def _missing(self, number: int) -> list[int]:
        """Return the sentences to come that lack this candidate."""
        return [
            i
            for i in range(max(self._next, self._own), len(self._sentences))
            if number not in self._sentences[i].written
        ]

    async def _write(self, id: int, place: Place, number: int, missing: Sequence[int]) -> None:
        """Write sentences at one place, in groups that are computed at once."""
        began_s, counts, lost = self._now(), [0] * place.sequences, False
        groups = self._groups(place, missing)
        self._counts.groups += len(groups)
        running = [
            asyncio.create_task(self._write_group(place, number, group, counts, n))
            for n, group in enumerate(groups)
        ]
        try:
            await asyncio.gather(*running)
        except EngineError:
            lost = True
            self._lost.append(place.endpoint.key)
            self._counts.moved += 1
        finally:
            await _ended(running)
            seconds = self._now() - began_s
            self._expanders.free(
                PlaceReport(id, sum(counts), max(counts, default=0), seconds, lost, self._behind)
            )

    def _groups(self, place: Place, missing: Sequence[int]) -> list[list[int]]:
        """Return groups of sentences, each of which is one sequence: as many as the place has room for, and fewer where
        there is time."""
        lengths = [len(self._sketch.notes[i]) for i in missing]
        scale = self._sentence_tokens * len(lengths) / sum(lengths)

        def fits(groups: Groups) -> bool:
            longest = max(sum(lengths[i] for i in group) for group in groups) * scale
            return longest * place.token_s <= self._plan.within_s

        merged = (merge if self._reader is None else merge_for_reader)(lengths, fits, place.sequences)
        return [[missing[i] for i in group] for group in merged]

    async def _write_group(
        self, place: Place, number: int, group: Sequence[int], counts: list[int], n: int
    ) -> None:
        session = self._sessions.at(place.endpoint)
        for i in group:
            if i < self._next:
                continue
            written, tokens = await self._written(session, i, number)
            counts[n] += tokens
            self._sentences[i].written[number] = written
            self._news.set()
        await session.close()

    async def _rewritten(self, i: int) -> Written | None:
        """Have the target write the sentence; None if that is unusable."""
        written, _ = await self._written(self._sessions["target"], i, 0)
        return written

    async def _written(self, session: EndpointSession, i: int, number: int) -> tuple[Written | None, int]:
        """Return a sentence, None if it is unusable, and the number of tokens that were computed."""
        prompt = self._format.expand(self._question, self._sketch, i)
        await session.cancel()
        await session.open(prompt, self._sampling(i, number, session.endpoint))
        ids: list[int] = []
        log_p, finish = 0.0, None
        async with aclosing(session.generate()) as stream:
            async for tokens in stream:
                ids += tokens.ids
                log_p += sum(each.logprob for each in tokens.logprobs or ())
                finish = tokens.finish
        kept = self._format.clean(self._question, self._sketch, i, ids, finish == "stop")
        text = self._format.text(kept)
        if not text or text == self._sentences[i].note:
            return None, len(ids)
        known = log_p if self._scored(session.endpoint) else None
        return Written(kept, text, known, session.endpoint.model), len(ids)

    def _scored(self, endpoint: EndpointInfo) -> bool:
        """Whether its log-probabilities are asked for: they do not translate between vocabularies."""
        return self._plan.candidates > 1 and endpoint.vocabulary == self._vocabulary

    def _sampling(self, i: int, number: int, endpoint: EndpointInfo) -> Sampling:
        """Return a sentence's sampling: its length is limited, and the answer's stops do not end it."""
        sampling = self._job.sampling
        greedy_again = sampling.greedy and number > 0
        return msgspec.structs.replace(
            sampling,
            max_tokens=max(LEAST_TOKENS, round(LONGEST * self._sentence_tokens)),
            temperature=OTHER_TEMPERATURE if greedy_again else sampling.temperature,
            seed=(sampling.seed + i * self._plan.candidates + number) % 2**63,
            stop=(),
            stop_tokens=(),
            reader_rate=UNSEEN_RATE,
            logprobs=0 if self._scored(endpoint) else -1,
            grammar=self._format.sentence_form(),
        )


def expanding_devices(job: Job) -> tuple[str, ...] | None:
    """Return the devices that may see the question: those that the client names, as far as its account may use
    them."""
    named = (job.device,) if isinstance(job.device, str) else job.device
    if named is None or ANY_DEVICE in named:
        return job.devices
    return tuple(name for name in named if job.devices is None or name in job.devices)


def _limit(seconds: float) -> float | None:
    """Return a time limit as `asyncio.timeout` has it."""
    return None if seconds == inf else seconds


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs of them, and return when nothing does."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
