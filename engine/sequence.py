"""One session inside the engine: its tokens, how far they are computed, and what it is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.base import Draft, Sampling, Tokens, Verdict
from engine.hosttier import Copy
from engine.kvcache import BlockTable
from engine.text import Detokenizer, StopStrings
from policies.quality import Reader

REFERENCE_RATE = 5.0  # tokens/s: what a client that reads nothing along counts as


@dataclass(slots=True)
class Generate:
    """Decode until the output ends, delivering each token."""

    deliver: Callable[[Tokens], None]


@dataclass(slots=True)
class Verify:
    """Check the drafts in one step and deliver the verdict. q_ids, q_probs: [drafts, width] or None."""

    drafts: list[int]
    q_ids: np.ndarray | None
    q_probs: np.ndarray | None
    deliver: Callable[[Verdict], None]

    def cut(self, drafts: int) -> Verify:
        """The same with the first `drafts` drafts only."""
        q_ids = None if self.q_ids is None else self.q_ids[:drafts]
        q_probs = None if self.q_probs is None else self.q_probs[:drafts]
        return Verify(self.drafts[:drafts], q_ids, q_probs, self.deliver)


@dataclass(slots=True)
class Propose:
    """Decode `window` tentative tokens and deliver them with the distributions they were drawn from."""

    window: int
    deliver: Callable[[Draft], None]
    ids: list[int] = field(default_factory=list)
    q_ids: list[torch.Tensor] = field(default_factory=list)
    q_probs: list[torch.Tensor] = field(default_factory=list)


Task = Generate | Verify | Propose


class Sequence:
    """A prompt and its output.

    computed: leading tokens whose keys and values are in the cache. At rest it is at most
        len(tokens) − 1: the last token is computed with the next task, which needs its logits.
    confirmed: leading tokens that are no tentative draft; only they may be shared as a prefix.
    number: order of opening, the sequence's age; arrival: order of its present task.
    rank: who comes first where not all can run, the lowest; paused: it shall not run now;
        fresh: no token since it was let in (see engine.schedule).
    reader: whoever takes the output in. opened_s: when it was opened, on the engine's clock.
    hosts, stored: host blocks that hold its first blocks, and how many of its tokens they are good for;
    loading, saving: copies under way (see engine.memory).
    """

    def __init__(
        self,
        session: int,
        number: int,
        prompt: list[int],
        log: list[int],
        sampling: Sampling,
        eos: int,
        text: Callable[[], tuple[Detokenizer, StopStrings]] | None,
        opened_s: float = 0.0,
    ) -> None:
        self.session, self.number, self.arrival = session, number, number
        self.prompt_len = len(prompt)
        self.tokens = prompt + log
        self.sampling = sampling
        self.table = BlockTable()
        self.computed = 0
        self.confirmed = len(self.tokens)
        self.task: Task | None = None
        self.admitted = False
        self.rank, self.paused, self.fresh = number, False, True
        self.opened_s = opened_s
        self.reader = Reader(sampling.reader_rate or REFERENCE_RATE)
        self.hosts: list[int] = []
        self.stored = 0
        self.loading: Copy | None = None
        self.saving: Copy | None = None
        self._ends: frozenset[int] = frozenset(sampling.stop_tokens) | (
            frozenset() if sampling.ignore_eos else {eos}
        )
        self._new_text = text
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
    def window(self) -> int:
        """Positions at the end of `pending` whose logits the task needs together."""
        if self.task is None:
            return 0
        return len(self.task.drafts) + 1 if isinstance(self.task, Verify) else 1

    @property
    def pending(self) -> int:
        """Positions to compute before the task (or, without one, the prefill) has what it needs."""
        drafts = len(self.task.drafts) if isinstance(self.task, Verify) else 0
        return len(self.tokens) + drafts - self.computed - (self.task is None)

    def full_blocks(self, block_size: int) -> int:
        """Blocks that will not change any more: computed, confirmed and full."""
        return min(self.computed, self.confirmed) // block_size

    def reach(self, more: int) -> int:
        """Tokens it may hold after so many more, its present window included."""
        return min(len(self.tokens) + max(more, self.window), self.prompt_len + self.sampling.max_tokens)

    def upcoming(self, count: int) -> list[int]:
        """The next `count` tokens to compute."""
        ids = self.tokens[self.computed : self.computed + count]
        if isinstance(self.task, Verify) and len(ids) < count:
            ids = ids + self.task.drafts[: count - len(ids)]
        return ids

    def append(self, token: int) -> bool:
        """Add an output token; True if the output ends with it (`finish` then says why)."""
        self.tokens.append(token)
        self.finish = self._finish_after(token, self.output_len)
        return self.finish is not None

    def ends_draft(self, token: int) -> bool:
        """Whether a draft should stop at `token` because the output would end there."""
        return token in self._ends or self.output_len >= self.sampling.max_tokens

    def replace(self, position: int, tokens: list[int]) -> int:
        """Set the output from `position` on; returns how many leading tokens are unchanged."""
        start = self.prompt_len + position
        same = 0
        for old, new in zip(self.tokens[start:], tokens, strict=False):
            if old != new:
                break
            same += 1
        self.tokens[start:] = tokens
        self.confirmed = len(self.tokens)
        # What watches text has no state to go back to, and an end that was found may lie before `position`.
        self._find_finish(0 if self._new_text or self.finish else position)
        return start + same

    def _find_finish(self, start: int = 0) -> None:
        """Look through the output from token `start` on for where it ends."""
        self._text = self._new_text and self._new_text()
        self.finish = None
        for count, token in enumerate(self.tokens[self.prompt_len + start :], start + 1):
            self.finish = self._finish_after(token, count)
            if self.finish is not None:
                break

    def _finish_after(self, token: int, output_len: int) -> str | None:
        if token in self._ends:
            return "stop"
        if self._text is not None:
            detokenizer, stops = self._text
            if stops.push(detokenizer.push([token]))[1]:
                return "stop"
        return "length" if output_len >= self.sampling.max_tokens else None
