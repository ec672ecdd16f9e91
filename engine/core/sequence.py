"""One session inside the engine: its tokens, how many of them are computed, and its task."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.engine.base import InvalidRequest, Sampling
from tandem.engine.core.absence import Absence
from tandem.engine.core.host_memory import Copy
from tandem.engine.core.kvcache import BlockTable
from tandem.engine.core.tasks import Task
from tandem.engine.served import Stay
from tandem.engine.text.detokenizer import Detokenizer, StopStrings, Watch
from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.control import REFERENCE_RATE
from tandem.policies.speculation.lookup import PromptLookup

if TYPE_CHECKING:
    from tandem.engine.text.grammar import Matcher


class SequencePlace:
    """A session's place in the engine's memory.

    table: its blocks of KV cache.
    admitted: whether it may hold blocks.
    computed: leading tokens whose keys and values are in the KV cache.
    hosts: host blocks that hold copies of its first blocks.
    stored: leading tokens whose keys and values are in `hosts`.
    loading: copy from host memory under way; None if there is none.
    saving: copy to host memory under way; None if there is none.
    """

    __slots__ = ("admitted", "computed", "hosts", "loading", "saving", "stored", "table")

    def __init__(self) -> None:
        self.table = BlockTable()
        self.admitted = False
        self.computed = 0
        self.hosts: list[int] = []
        self.stored = 0
        self.loading: Copy | None = None
        self.saving: Copy | None = None

    def recede(self, tokens: int) -> None:
        """Roll back: at most the first `tokens` computed tokens stay valid."""
        self.computed = min(self.computed, tokens)


class Sequence(SequencePlace):
    """A prompt and its output.

    number: order of opening.
    arrival: order of its present task.
    tokens: prompt and output, tentative drafts included.
    confirmed: leading tokens that are no tentative drafts; only these may be shared as a prefix.
    goal: tokens to be computed next, drafts under verification included; see `pending`.
    window: positions at the end of `pending` whose logits the task needs together.
    rank: order in which sessions run where not all can, the lowest first.
    paused: whether the scheduling policy keeps it from running.
    fresh: whether it has had no token since it was admitted.
    ends: tokens with which the output ends.
    reader: the client's reading of the output.
    lookup: finds drafts in its own text; None if the engine looks up nothing.
    matcher: allows the tokens that may follow by its grammar; None if any may.
    opened_s: when the request's first session was opened, on the engine's clock.
    absence: of its client, between two tasks.
    stay: what the engine's metrics tell of it.
    """

    RESERVED = 1
    """Last tokens that only a task computes, because it needs their logits."""

    __slots__ = (
        "_new_text",
        "_text",
        "absence",
        "arrival",
        "confirmed",
        "ends",
        "finish",
        "fresh",
        "goal",
        "lookup",
        "matcher",
        "number",
        "opened_s",
        "paused",
        "prompt_len",
        "rank",
        "reader",
        "sampling",
        "stay",
        "task",
        "tokens",
        "window",
    )

    def __init__(
        self,
        number: int,
        prompt: list[int],
        log: list[int],
        sampling: Sampling,
        eos: int,
        text: Watch | None = None,
    ) -> None:
        """text: makes the detokenizer and the stop strings at the output's beginning; None without stop strings."""
        super().__init__()
        self.number = self.arrival = self.rank = number
        self.prompt_len = len(prompt)
        self.tokens = prompt + log
        self.sampling = sampling
        self.confirmed = len(self.tokens)
        self.task: Task | None = None
        self.goal, self.window = len(self.tokens) - self.RESERVED, 0
        self.paused, self.fresh = False, True
        self.lookup: PromptLookup | None = None
        self.matcher: Matcher | None = None
        self.opened_s, self.absence = 0.0, Absence()
        self.stay = Stay()
        self.reader = Reader(sampling.reader_rate or REFERENCE_RATE)
        self.ends = frozenset(sampling.stop_tokens if sampling.ignore_eos else (*sampling.stop_tokens, eos))
        self._new_text = text
        self._text: tuple[Detokenizer, StopStrings] | None = None
        self.finish: str | None = None
        self._find_finish()

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.prompt_len]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_len :]

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def pending(self) -> int:
        """Positions to compute before the task, or without one the prefill, is done."""
        return max(0, self.goal - self.computed)

    def at_rest(self, now_s: float) -> bool:
        """Whether it has nothing to compute, and its client is not expected to change that soon, or may not run."""
        return self.paused or (self.pending == 0 and not self.absence.left_s(now_s))

    def begin(self, task: Task, arrival: int) -> None:
        """Set the session's next task."""
        self.task, self.arrival = task, arrival
        self.window = task.window
        self.goal = len(self.tokens) + len(task.drafts)

    def end(self) -> None:
        """Remove the task."""
        self.task = None
        self.goal, self.window = len(self.tokens) - self.RESERVED, 0

    def full_blocks(self, block_size: int) -> int:
        """Number of blocks that will not change any more: computed, confirmed and full."""
        return min(self.computed, self.confirmed) // block_size

    @property
    def reusable(self) -> int:
        """Leading tokens that may be taken from cached prefixes on admission."""
        return min(self.confirmed, len(self.tokens) - 1)

    def upcoming(self, count: int) -> list[int] | np.ndarray:
        """Return the next `count` tokens to compute."""
        ids = self.tokens[self.computed : self.computed + count]
        if len(ids) < count and self.task is not None:
            ids += self.task.drafts[: count - len(ids)]
        return ids

    # -- policies.scheduling.control.SessionView ---------------------------------------------------------

    @property
    def wanting(self) -> bool:
        """Whether the session has a task; otherwise it waits for its client."""
        return self.task is not None

    @property
    def received(self) -> int:
        """Output tokens so far."""
        return self.output_len

    @property
    def longest(self) -> int:
        """Output tokens that its client allows."""
        return self.sampling.max_tokens

    @property
    def missing(self) -> int:
        """Tokens to be computed or loaded before it decodes."""
        return (
            self.goal - self.computed - self.RESERVED
            if self.admitted
            else max(0, len(self.tokens) - self.computed)
        )

    def reach(self, more: int) -> int:
        """Return the tokens that it may hold after `more` further ones, its present window included."""
        return min(len(self.tokens) + max(more, self.window), self.prompt_len + self.sampling.max_tokens)

    # -- output -----------------------------------------------------------------------------------------

    def append(self, ids: list[int]) -> int:
        """Add output tokens up to the output's end, which sets `finish`; return how many were added."""
        tokens, most = self.tokens, self.prompt_len + self.sampling.max_tokens
        if self._text is None and len(tokens) + len(ids) < most and self.ends.isdisjoint(ids):
            tokens += ids
            return len(ids)
        for count, token in enumerate(ids, 1):
            tokens.append(token)
            self.finish = self._finish_after(token, len(tokens) - self.prompt_len)
            if self.finish is not None:
                return count
        return len(ids)

    def ends_draft(self, token: int) -> bool:
        """Whether a draft should stop at `token` because the output would end there."""
        return token in self.ends or self.output_len >= self.sampling.max_tokens

    def check_place(self, position: int, count: int) -> None:
        """Raise InvalidRequest if `count` tokens cannot be set from output position `position` on."""
        if not 0 <= position <= self.output_len or position + count > self.sampling.max_tokens:
            raise InvalidRequest(
                f"cannot set {count} tokens at position {position}: the output has {self.output_len} "
                f"of at most {self.sampling.max_tokens}"
            )

    def replace(self, position: int, tokens: Collection[Any]) -> int:
        """Set the output from `position` on; return the number of leading tokens that are unchanged."""
        start = self.prompt_len + position
        same = 0
        for old, new in zip(self.tokens[start:], tokens, strict=False):
            if old != new:
                break
            same += 1
        self.tokens[start:] = tokens
        self.confirmed = len(self.tokens)
        self.goal = self.confirmed - self.RESERVED
        # Stop strings cannot be rolled back, and an end that was found may lie before `position`.
        self._find_finish(0 if self._new_text or self.finish else position)
        return start + same

    def _find_finish(self, start: int = 0) -> None:
        """Find where the output ends, from output token `start` on."""
        self._text = self._new_text and self._new_text()
        self.finish = None
        for count, token in enumerate(self.tokens[self.prompt_len + start :], start + 1):
            self.finish = self._finish_after(token, count)
            if self.finish is not None:
                break

    def _finish_after(self, token: int, output_len: int) -> str | None:
        if token in self.ends:
            return "stop"
        if self._text is not None:
            detokenizer, stops = self._text
            text = detokenizer.push([token])
            if output_len > self.sampling.min_tokens and stops.push(text)[1]:
                return "stop"
        return "length" if output_len >= self.sampling.max_tokens else None
