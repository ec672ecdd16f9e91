"""One choice of an answer: turns a job's tokens into text, with the origin of every character."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, repeat
from operator import itemgetter

from tandem.app.api.reader.metrics import Arrivals, Reading
from tandem.app.api.tools.answer_reader import AnswerReader
from tandem.app.api.tools.reader import CallPart, Parts
from tandem.deployments.access.kept.streams import Said
from tandem.deployments.request.job import Delta, JobStats, figures_by_mode
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import TokenLogprob
from tandem.engine.privacy.stand_ins import Restorer
from tandem.engine.text.detokenizer import Detokenizer, Spelling, StopStrings

Run = tuple[str, int]  # (origin, characters)


@dataclass(slots=True)
class ScoredToken:
    """A token with its log-probabilities.

    offset: index of its first character in the choice's text.
    scores: its log-probabilities; None for a prompt's first token.
    bare: whether a message begins with it, without the space before it.
    """

    token: int
    offset: int
    scores: TokenLogprob | None
    bare: bool = False


@dataclass(slots=True)
class ChoicePiece:
    """New text of a choice, with its tokens.

    runs: (origin, characters) pairs in order, which add up to the length of `text`; with reasoning or calls, to that of
        all that the model wrote.
    scored: tokens with log-probabilities, if asked for; of a chat's answer those of its content.
    finish, stats, reading: set in the last piece.
    reasoning: new text of what the model thinks before it answers.
    calls: new parts of its calls of tools.
    ids, origins: the tokens, which may be ahead of the text.
    """

    text: str
    runs: list[Run]
    scored: list[ScoredToken]
    finish: str | None
    stats: JobStats | None
    reading: Reading | None
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    """Text of one token that a stop string may still cut off.

    scored: the token; None if it has no log-probabilities.
    begun: whether the token was given out already.
    """

    origin: Origin
    characters: int
    scored: ScoredToken | None
    begun: bool = False


class Choice:
    """Takes in the deltas of one job and gives out pieces of text.

    tokens: output tokens used so far, up to and including one that completed a stop string.
    reasoning_tokens: those of them with which the model thinks, the marks around that included.
    finish: why it ended, "stop" or "length"; None before. Later deltas are ignored.
    reader: splits the text into content, reasoning and calls; None if all of it is content.
    restorer: takes stand-ins out of the text, where it may have any.
    reading: how the answer came for its reader; None before the last piece was taken.
    arrivals: times of the tokens, noted by the caller that runs the job.
    prompt_scores: log-probabilities of the prompt's tokens but the first, as far as they have come.
    """

    def __init__(
        self,
        tokenizer: Spelling,
        stop: tuple[str, ...] = (),
        mode: str | None = None,
        rate: float = 0.0,
        chat: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Begin an empty choice.

        mode: mode that the client asked for.
        rate: tokens/s that the reader takes in; 0 if there is no reader.
        chat: whether to drop the space that a message's first token begins with.
        min_tokens: first tokens, in which no stop string is looked for.
        """
        self._at_beginning = chat
        self._tokenizer, self._detokenizer = tokenizer, Detokenizer(tokenizer)
        self._unscored: deque[tuple[int, int]] = deque()  # (token, offset) of the prompt
        self._stops = StopStrings(stop) if stop else None
        self._min_tokens = min_tokens
        self._stats, self._ttft_s = JobStats(mode=mode or ""), 0.0
        self._by_origin: dict[str, int] = {}
        self._started = time.monotonic()
        self._held: deque[_Held] = deque()
        self._last = Origin.CLOUD  # of the last token
        self._taken_in = 0  # characters detokenized so far
        self._text: list[str] = []
        self._runs: list[Run] = []
        self._scored: list[ScoredToken] = []
        self._reported = False
        self.arrivals = Arrivals(rate)
        self.reading: Reading | None = None
        self.reader: AnswerReader | None = None
        self.restorer: Restorer | None = None
        self.prompt_scores: list[TokenLogprob] = []
        self._ids: list[int] = []
        self._origins: list[Origin] = []  # of these
        self._parts = Parts()  # of the text, as the reader has split it
        self._unread: list[
            tuple[int, ScoredToken | None]
        ] = []  # (characters, token) that the reader has kept so far
        self._unread_tokens = 0
        self.tokens = self.reasoning_tokens = 0
        self.finish: str | None = None

    def prepend(self, text: str) -> None:
        """Begin with the prompt's text, whose origin is "prompt", as `echo` asks."""
        self._text.append(text)
        self._runs.append(("prompt", len(text)))
        self._taken_in = len(text)

    def expect_scores(self, prompt: Sequence[int]) -> None:
        """Prepare for the prompt's log-probabilities, which `push` will bring."""
        offset, detokenizer = 0, Detokenizer(self._tokenizer)
        for token in prompt:
            self._unscored.append((token, offset))
            offset += len(detokenizer.push([token]))
        self._scored.append(ScoredToken(*self._unscored.popleft(), None))

    def push(self, delta: Delta) -> None:
        """Take in a delta of the job; ignored after `finish`."""
        if self.finish:
            return
        for score in delta.prompt_logprobs or ():
            self.prompt_scores.append(score)
            if self._unscored:
                self._scored.append(ScoredToken(*self._unscored.popleft(), score))
        if delta.ids and not self.tokens:
            self._ttft_s = time.monotonic() - self._started
        if self._stops is None and delta.logprobs is None and self.reader is None:
            self._push_runs(delta)
        else:
            self._push_tokens(delta)
        if delta.finish and not self.finish:
            self._end(delta)
        self._stats = delta.stats or self._stats
        if self.finish and not delta.finish:
            self._stats = self._cut_short()

    def begin(self, said: Said) -> ChoicePiece | None:
        """Take in what the choice has given out elsewhere, and return that as one piece, without stats."""
        self.push(Delta(said.ids, said.origins))
        piece = self.take()
        if said.finish:
            self.finish, self._reported = said.finish, True
        return piece

    def take(self) -> ChoicePiece | None:
        """Return what is new since the last call; None if nothing is."""
        if self.finish and not self._reported and self.restorer is not None:
            self._add(self.restorer.flush(), self._last)
        if not self._text and not self._scored and (self.finish is None or self._reported):
            return None
        self._reported = self.finish is not None
        finish = self.finish
        if self.reader is not None and finish:
            self._read_end(self.reader)
            finish = "tool_calls" if self.reader.called and finish == "stop" else finish
        piece = ChoicePiece(
            "".join(self._text),
            self._runs,
            self._scored,
            finish,
            None,
            None,
            ids=self._ids,
            origins=self._origins,
        )
        if self.reader is not None:
            parts, self._parts = self._parts, Parts()
            piece.text, piece.reasoning, piece.calls = parts.content, parts.reasoning, parts.calls
        if self.finish:
            self.reading = self.arrivals.reading(self.tokens)
            piece.stats, piece.reading = self._stats, self.reading
        self._text, self._runs, self._scored, self._ids, self._origins = [], [], [], [], []
        return piece

    def _read(self, reader: AnswerReader, text: str) -> None:
        """Have a token's text split into content, reasoning and calls."""
        thinking = reader.thinking
        self._split(reader.push(text))
        if thinking:
            self.reasoning_tokens += self._unread_tokens
        if not (reader.thinking or reader.thought):
            self.reasoning_tokens = 0  # they looked like the beginning of thoughts
        self._unread_tokens = 0

    def _read_end(self, reader: AnswerReader) -> None:
        """Have the reader give out what it held back."""
        self._split(reader.flush())
        if reader.thinking:
            self.reasoning_tokens = self.tokens if reader.thought else 0
        elif not reader.called:
            self._scored += [token for size, token in self._unread if token is not None and not size]
        self._unread.clear()

    def _split(self, new: Parts) -> None:
        """Add parts of the answer."""
        parts = self._parts
        parts.content += new.content
        parts.reasoning += new.reasoning
        parts.add_calls(new.calls)
        if new.content:
            self._scored += self._last_tokens(len(new.content))
        if new.content or new.reasoning or new.calls:
            self._unread.clear()

    def _last_tokens(self, characters: int) -> list[ScoredToken]:
        """Return the tokens of the last characters that the reader was given: those before were no content."""
        found: list[ScoredToken] = []
        for size, token in reversed(self._unread):
            if characters <= 0 and size:
                break
            characters -= size
            found += [] if token is None else [token]
        return found[::-1]

    def so_far(self) -> JobStats:
        """Return the job's stats until now, or to the choice's end."""
        return self._stats if self.finish else self._cut_short()

    def _push_runs(self, delta: Delta) -> None:
        """Add text by runs of one origin: the fast path, without stop strings and log-probabilities."""
        for origin, group in groupby(zip(delta.origins, delta.ids, strict=True), itemgetter(0)):
            ids = [i for _, i in group]
            self._count(origin, ids)
            if text := self._detokenizer.push(ids):
                self._taken_in += len(text)
                self._append(text, origin)

    def _push_tokens(self, delta: Delta) -> None:
        scores: Iterator[TokenLogprob | None] = iter(delta.logprobs) if delta.logprobs else repeat(None)
        for token, origin, score in zip(delta.ids, delta.origins, scores, strict=False):
            self._count(origin, [token])
            scored = None if score is None else ScoredToken(token, self._taken_in, score)
            self._push_text(self._detokenizer.push([token]), origin, scored)
            if self.finish:
                return

    def _push_text(self, text: str, origin: Origin, scored: ScoredToken | None = None) -> None:
        """Add a token's text; what may be the beginning of a stop string is held back."""
        self._taken_in += len(text)
        self._held.append(_Held(origin, len(text), scored))
        watched = self._stops is not None and self.tokens > self._min_tokens
        safe, stopped = self._stops.push(text) if self._stops and watched else (text, False)
        self._release(safe)
        if stopped:
            self.finish = "stop"

    def _release(self, safe: str) -> None:
        """Give out `safe`, the beginning of the held text; a scored token comes with its first character."""
        at = 0
        while self._held and (at < len(safe) or not self._held[0].characters):
            held = self._held[0]
            part = safe[at : at + held.characters]
            if not held.begun:
                held.begun = True
                self._begin(held, bool(part))
            if part:
                self._append(part, held.origin)
            at += len(part)
            held.characters -= len(part)
            if held.characters == 0:
                self._held.popleft()

    def _begin(self, held: _Held, shown: bool) -> None:
        """Give out the next token. shown: whether it has text."""
        scored = held.scored
        if scored is not None:
            scored.bare = self._at_beginning and shown
        if self.reader is not None:
            self._unread.append((held.characters, scored))
            self._unread_tokens += 1
        elif scored is not None:
            self._scored.append(scored)

    def _append(self, text: str, origin: Origin) -> None:
        """Add text; a stand-in's belongs to the origin of its last character."""
        self._add(text if self.restorer is None else self.restorer.push(text), origin)

    def _add(self, text: str, origin: Origin) -> None:
        if not text:
            return
        if self._at_beginning:
            self._at_beginning = False
            text = text.removeprefix(" ")
            if not text:
                return
        self._text.append(text)
        if self._runs and self._runs[-1][0] == origin:
            self._runs[-1] = (origin, self._runs[-1][1] + len(text))
        else:
            self._runs.append((origin, len(text)))
        if self.reader is not None:
            self._read(self.reader, text)

    def _count(self, origin: Origin, ids: list[int]) -> None:
        self.tokens += len(ids)
        self._ids += ids
        self._origins += [origin] * len(ids)
        self._last = origin
        counts = self._by_origin
        counts[origin] = counts.get(origin, 0) + len(ids)

    def _end(self, delta: Delta) -> None:
        """End with the job: release held text, unless the rest of an unfinished character completes a stop string."""
        self._push_text(self._detokenizer.flush(), self._last)
        if self.finish is None:
            self._release(self._stops.flush() if self._stops else "")
            self.finish = delta.finish

    def _cut_short(self) -> JobStats:
        """Return a copy of the job's stats as of now, for an answer that ends before its job."""
        known = self._stats
        return replace(
            known,
            ttft_s=self._ttft_s,
            total_s=time.monotonic() - self._started,
            tokens=self.tokens,
            by_origin=self._by_origin,
            figures=figures_by_mode([known]),
        )
