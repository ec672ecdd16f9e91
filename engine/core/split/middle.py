"""The middle of a split model behind the engine protocol: sessions of hidden states, without any token.

A session's rows stay in host memory (they are small beside keys and values), so that a preempted session is computed
again without asking the device. Each row has a unique number in place of a token id. The cache is keyed by these
numbers, so a session never finds blocks of another session, nor of its own rolled-back rows. At its end they are kept
under the handle that it has, if any, for the next session with that handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np

from tandem.engine.base import EngineInfo, Forward, Forwarded, InvalidRequest, Operation, Sampling
from tandem.engine.core.engine import CoreEngine, CoreSession, Driver, Receive
from tandem.engine.core.sequence import Sequence as CoreSequence
from tandem.engine.core.split.kept import KeptRows, KeptStates
from tandem.engine.core.split.rows import Rows
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import Computed, ForwardTask
from tandem.engine.split.hidden_states import CODEC, KINDS, Codec, Kind, back
from tandem.engine.validation import check_request

_numbers = count()


class MiddleSequence(CoreSequence):
    """Rows of hidden states; `tokens` are their numbers.

    known: positions of prompt and output that the device has confirmed, as far as its rounds tell.
    begun: value of `known` at the first round; None before.
    """

    RESERVED = 0

    __slots__ = ("begun", "known", "rows")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows = Rows()
        self.known = 0
        self.begun: int | None = None

    def hear(self, known: int, now: float) -> None:
        """Note the beginning of a round, with the tokens that the last one gave the device's reader."""
        if self.begun is None:
            self.begun = known
        else:
            self.reader.deliver(max(0, known - self.known), now)
        self.known = known

    @property
    def received(self) -> int:
        return 0 if self.begun is None else self.known - self.begun

    @property
    def longest(self) -> int:
        return self.sampling.max_tokens - (self.begun or 0)

    def upcoming(self, count: int) -> np.ndarray:
        return self.rows.between(self.computed, self.computed + count)

    def replace(self, position: int, tokens: Collection[Any]) -> int:
        """Set the rows from `position` on; all of them are new."""
        self.rows.cut(position)
        self.rows.put(position, np.asarray(tokens, np.float32))
        self.tokens[position:] = [next(_numbers) for _ in tokens]
        self.confirmed = self.goal = len(self.tokens)
        return position

    def resume(self, kept: KeptRows) -> None:
        """Begin with rows that were kept; only of a session that the core does not have yet."""
        self.rows, self.tokens = kept.rows, kept.numbers
        self.confirmed = self.goal = len(self.tokens)

    def _finish_after(self, token: int, output_len: int) -> None:
        return None  # the device knows


class MiddleEngine(CoreEngine):
    """Sessions of hidden states over one core."""

    def __init__(self, core: Core, driver: Driver, info: EngineInfo, codec: Codec = CODEC) -> None:
        assert info.split is not None
        split = msgspec.structs.replace(info.split, takes=KINDS)
        super().__init__(core, driver, msgspec.structs.replace(info, split=split))
        self.split, self.codec = split, codec
        self._sequence, self._session = MiddleSequence, MiddleSession
        self.kept = KeptStates()

    def begin(self, sequence: CoreSequence) -> None:
        assert isinstance(sequence, MiddleSequence)
        if handle := sequence.sampling.kept:
            kept = self.kept.take(handle, self._core.clock())
            if kept is not None and len(kept.numbers) <= sequence.sampling.max_tokens:
                sequence.resume(kept)
        super().begin(sequence)

    def end(self, sequence: CoreSequence) -> None:
        assert isinstance(sequence, MiddleSequence)
        super().end(sequence)
        if handle := sequence.sampling.kept:
            self.kept.put(handle, KeptRows(sequence.rows, sequence.tokens, self._core.clock()))

    def check_request(self, prompt: Sequence[int], log: Sequence[int], sampling: Sampling) -> None:
        if prompt or log:
            raise InvalidRequest(f"{self.info.model} takes hidden states: no prompt and no log")
        told = Sampling(
            sampling.max_tokens,
            reader_rate=sampling.reader_rate,
            ignore_eos=sampling.ignore_eos,
            waited_s=sampling.waited_s,
            trace=sampling.trace,
            kept=sampling.kept,
        )
        if sampling != told:
            raise InvalidRequest(f"{self.info.model} does not sample: of that, it is told max_tokens alone")
        check_request([0], [], sampling, 1, self.info.context + 1)


class MiddleSession(CoreSession):
    _engine: MiddleEngine
    _sequence: MiddleSequence

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = asyncio.Lock()

    @property
    def engine(self) -> MiddleEngine:
        """The session's engine."""
        return self._engine

    def _run(self, operation: Operation[Any]) -> Awaitable[Any]:
        if isinstance(operation, Forward):
            return through([self], operation)
        if operation.taken_in:
            raise InvalidRequest(f"{self._engine.info.model} takes hidden states, no tokens")
        return super()._run(operation)

    async def compute(
        self, position: int, given: Callable[[], np.ndarray], judged: int, returned: int
    ) -> Computed:
        """Run hidden states from `position` on through these layers.

        given: returns the hidden states; called on the core's side.
        judged: number of last rows that the device judges drafts by.
        returned: number of last rows to return.
        """

        def run(deliver: Receive) -> None:
            rows = given()
            if not 0 <= judged <= len(rows):
                raise InvalidRequest(f"of {len(rows)} positions, {judged} cannot come back")
            self._core.extend(self._sequence, position, rows)
            if judged:  # drafts, and the last confirmed token
                self._sequence.hear(position + len(rows) - judged + 1, self._core.clock())
            self._core.assign(self._sequence, ForwardTask(returned, deliver))

        async with self._turn:
            computed: Computed = await self._ask(run)
        return computed


async def through(stages: Sequence[MiddleSession], operation: Forward) -> Forwarded:
    """Run hidden states through all stages; the next operation follows in the stage that this one leaves. Between
    stages, hidden states are not encoded for the wire."""
    loop, hidden = asyncio.get_running_loop(), operation.hidden
    began_s, batch_s = loop.time(), 0.0
    first = stages[0].engine
    given = partial(first.codec.unpack, hidden, first.split.hidden)
    for stage in stages:
        returned = operation.wanted if stage is stages[-1] else hidden.shape[0]
        computed = await stage.compute(operation.position, given, operation.wanted, returned)
        batch_s += computed.batch_s
        given = partial(np.asarray, computed.rows)
    kind: Kind = hidden.dtype  # type: ignore[assignment]  # unpack has checked it
    deep = first.codec.pack(computed.rows, back(kind))
    return Forwarded(deep, computed.batch_tokens, batch_s, loop.time() - began_s)
