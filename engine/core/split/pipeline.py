"""A middle in P stages: engines that each have some of the layers, and a KV cache for them.

While one stage computes a chunk of hidden states, the stage before it computes the next one, of the same session or of
another: P batches are computed at once (HAT, section 3.3). Each operation of a session runs at every stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from tandem.engine.base import EngineInfo, EngineStats, Forward, Operation, Sampling, Tokens
from tandem.engine.core.split.middle import MiddleEngine, MiddleSession, through
from tandem.engine.sessions.session import BaseSession


def spread(first: int, layers: int, stages: int) -> list[tuple[int, int]]:
    """Return (first, end) of the layers from `first` on in `stages` parts that differ by one layer at most. Raise
    ValueError if there are too few layers."""
    if not 1 <= stages <= layers - first:
        raise ValueError(f"{layers - first} layers cannot be {stages} stages")
    ends = [first + (layers - first) * (i + 1) // stages for i in range(stages)]
    return list(pairwise([first, *ends]))


class Pipeline:
    """The Engine protocol over the stages of a middle. It closes them."""

    def __init__(self, stages: Sequence[MiddleEngine]) -> None:
        self._stages = list(stages)
        info = self._stages[0].info
        assert info.split is not None
        split = msgspec.structs.replace(info.split, stages=len(self._stages))
        self.info: EngineInfo = msgspec.structs.replace(info, split=split)

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> PipelineSession:
        opened: list[MiddleSession] = []
        try:
            for stage in self._stages:
                session = await stage.open(prompt, sampling, log)
                assert isinstance(session, MiddleSession)
                opened.append(session)
        except BaseException:
            for session in opened:
                await session.cancel()
            raise
        return PipelineSession(self.info, opened)

    @property
    def sessions(self) -> int:
        """Number of open sessions."""
        return self._stages[0].sessions

    @property
    def blocks_used(self) -> int:
        """Number of blocks that sessions hold, at all stages together."""
        return sum(stage.blocks_used for stage in self._stages)

    async def stats(self) -> EngineStats:
        """Return the stats of the stage with the least room, whose steps are the pipeline's."""
        return min([await stage.stats() for stage in self._stages], key=_room)

    def gauges(self) -> EngineStats:
        """Return the gauges of that stage, as `CoreEngine.gauges`."""
        return min((stage.gauges() for stage in self._stages), key=_room)

    async def close(self) -> None:
        await asyncio.gather(*(stage.close() for stage in self._stages))


def _room(stats: EngineStats) -> int:
    return stats.blocks_free


class PipelineSession(BaseSession):
    """One session at each stage."""

    def __init__(self, info: EngineInfo, stages: Sequence[MiddleSession]) -> None:
        super().__init__(info)
        self._stages = stages

    def generate(self) -> AsyncGenerator[Tokens, None]:
        return self._stages[0].generate()  # which refuses

    async def _run(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Forward):
            return await through(self._stages, operation)
        for stage in self._stages:
            await stage.call(operation)
        return None

    async def cancel(self) -> None:
        if not self._end():
            return
        for stage in self._stages:
            await stage.cancel()
