"""One choice of an answer: from a job's tokens to text whose every character knows where it came from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from operator import itemgetter

from tandem.app.api.completions.reader_metrics import Arrivals, Reading
from tandem.deployments.request.job import Delta, JobStats, figures_by_mode
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import TokenLogprob
from tandem.engine.text import Detokenizer, StopStrings
from tandem.engine.tokenizer import Tokenizer

Run = tuple[str, int]  # (origin, characters)


@dataclass(slots=True)
class ScoredToken:
    """A token with its log-probabilities; a prompt's first has none. offset: the character of the choice's text
    at which it begins."""

    token: int
    offset: int
    scores: TokenLogprob | None


@dataclass(slots=True)
class Piece:
    """What a choice has to say since the last piece.

    runs: who said it, as (origin, characters) in order; they add up to the length of `text`.
    finish, stats and reading come with the last piece.
    """

    text: str
    runs: list[Run]
    scored: list[ScoredToken]
    finish: str | None
    stats: JobStats | None
    reading: Reading | None


@dataclass(slots=True)
class _Held:
    """Text that is not given out yet, all of one origin, and the tokens behind it."""

    origin: Origin
    characters: int
    scored: ScoredToken | None


class Choice:
    """Takes in the deltas of one job and gives out pieces of text.

    tokens: output tokens used so far, up to and including one that completed a stop string.
    finish: None, "stop" or "length"; once it is set, what the job still says is of no use.
    reading: how a reader met it, once the last piece was taken.
    arrivals: when the tokens came; whoever runs the job notes it there. rate: the reader's tokens/s, 0: nobody.
    chat: the answer begins a message, without the space that its first token is spelt with.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        mode: str | None = None,
        rate: float = 0.0,
        chat: bool = False,
    ) -> None:
        self._at_beginning = chat
        self._tokenizer, self._detokenizer = tokenizer, Detokenizer(tokenizer)
        self._unscored: deque[tuple[int, int]] = deque()  # tokens of the prompt, and where they begin
        self._stops = StopStrings(stop) if stop else None
        self._stats, self._ttft_s = JobStats(mode=mode or ""), 0.0
        self._by_origin: dict[str, int] = {}
        self._started = time.monotonic()
        self._held: deque[_Held] = deque()
        self._last = Origin.CLOUD  # who said the last token
        self._taken_in = 0  # characters detokenized so far
        self._text: list[str] = []
        self._runs: list[Run] = []
        self._scored: list[ScoredToken] = []
        self._reported = False
        self.arrivals = Arrivals(rate)
        self.reading: Reading | None = None
        self.tokens = 0
        self.finish: str | None = None

    def prepend(self, text: str) -> None:
        """Begin with the prompt's own text, as `echo` asks; its origin is "prompt"."""
        self._text.append(text)
        self._runs.append(("prompt", len(text)))
        self._taken_in = len(text)

    def expect_scores(self, prompt: Sequence[int]) -> None:
        """The prompt that it begins with will be scored."""
        offset, detokenizer = 0, Detokenizer(self._tokenizer)
        for token in prompt:
            self._unscored.append((token, offset))
            offset += len(detokenizer.push([token]))
        self._scored.append(ScoredToken(*self._unscored.popleft(), None))

    def push(self, delta: Delta) -> None:
        """Take in what the job said; after `finish` nothing more."""
        if self.finish:
            return
        for score in delta.prompt_logprobs or ():
            self._scored.append(ScoredToken(*self._unscored.popleft(), score))
        if delta.ids and not self.tokens:
            self._ttft_s = time.monotonic() - self._started
        if self._stops is None and delta.logprobs is None:
            self._push_runs(delta)
        else:
            self._push_tokens(delta)
        if delta.finish and not self.finish:
            self._end(delta)
        self._stats = delta.stats or self._stats
        if self.finish and not delta.finish:
            self._stats = self._cut_short()

    def take(self) -> Piece | None:
        """What is new since the last call; None if there is nothing to tell."""
        if not self._text and not self._scored and (self.finish is None or self._reported):
            return None
        self._reported = self.finish is not None
        text = "".join(self._text)
        piece = Piece(text, self._runs, self._scored, self.finish, None, None)
        if self.finish:
            self.reading = self.arrivals.reading(self.tokens)
            piece.stats, piece.reading = self._stats, self.reading
        self._text, self._runs, self._scored = [], [], []
        return piece

    def so_far(self) -> JobStats:
        """What it has cost until now, or to its end."""
        return self._stats if self.finish else self._cut_short()

    def _push_runs(self, delta: Delta) -> None:
        """The usual case: nothing is held back and no token is looked at alone."""
        for origin, group in groupby(zip(delta.origins, delta.ids, strict=True), itemgetter(0)):
            ids = [i for _, i in group]
            self._count(origin, len(ids))
            if text := self._detokenizer.push(ids):
                self._taken_in += len(text)
                self._say(text, origin)

    def _push_tokens(self, delta: Delta) -> None:
        scores: Iterator[TokenLogprob | None] = iter(delta.logprobs) if delta.logprobs else repeat(None)
        for token, origin, score in zip(delta.ids, delta.origins, scores, strict=False):
            self._count(origin, 1)
            scored = None if score is None else ScoredToken(token, self._taken_in, score)
            self._push_text(self._detokenizer.push([token]), origin, scored)
            if self.finish:
                return

    def _push_text(self, text: str, origin: Origin, scored: ScoredToken | None = None) -> None:
        """Through the stop strings; what they hold back waits with its origin."""
        self._taken_in += len(text)
        self._held.append(_Held(origin, len(text), scored))
        safe, stopped = (text, False) if self._stops is None else self._stops.push(text)
        self._release(safe)
        if stopped:
            self.finish = "stop"

    def _release(self, safe: str) -> None:
        """Give out `safe`, the beginning of what is held; a token is told of with its first character."""
        at = 0
        while self._held and (at < len(safe) or not self._held[0].characters):
            held = self._held[0]
            if held.scored:
                self._scored.append(held.scored)
                held.scored = None
            part = safe[at : at + held.characters]
            if part:
                self._say(part, held.origin)
            at += len(part)
            held.characters -= len(part)
            if held.characters == 0:
                self._held.popleft()

    def _say(self, text: str, origin: Origin) -> None:
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

    def _count(self, origin: Origin, tokens: int) -> None:
        self.tokens += tokens
        self._last = origin
        counts = self._by_origin
        counts[origin] = counts.get(origin, 0) + tokens

    def _end(self, delta: Delta) -> None:
        """The job ended by itself: nothing held back can become a stop string any more, except by the last
        half of a character."""
        self._push_text(self._detokenizer.flush(), self._last)
        if self.finish is None:
            self._release(self._stops.flush() if self._stops else "")
            self.finish = delta.finish

    def _cut_short(self) -> JobStats:
        """The job's, as of now: the answer ends, by a stop string or because nobody wants it, before the job does."""
        known = self._stats
        return replace(
            known,
            ttft_s=self._ttft_s,
            total_s=time.monotonic() - self._started,
            tokens=self.tokens,
            by_origin=self._by_origin,
            figures=figures_by_mode([known]),
        )
