"""A simulated device's model: scripted tokens, in no time. The live `cluster.devices.device.Device` around it adds the
time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tandem.engine.base import (
    Draft,
    Drafts,
    EngineInfo,
    EngineStats,
    Extend,
    Operation,
    Sampling,
    Tokens,
)
from tandem.engine.sessions.session import BaseSession
from tandem.simulator.engines.script import EOS, Script


class ScriptedEngine:
    """Engine that generates and drafts from a script; shared by all devices that run this model."""

    def __init__(self, script: Script, info: EngineInfo) -> None:
        self.info, self.script = info, script

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> ScriptedSession:
        return ScriptedSession(self, self.script.number(prompt), sampling.max_tokens, len(log))

    async def stats(self) -> EngineStats:
        return EngineStats()

    async def close(self) -> None:
        pass


class ScriptedSession(BaseSession):
    """Session of a ScriptedEngine.

    number: of the request.
    length: tokens of its output so far, drafts included.
    """

    def __init__(self, engine: ScriptedEngine, number: int, most: int, length: int) -> None:
        super().__init__(engine.info)
        self._script, self._number, self._most, self._length = engine.script, number, most, length

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        try:
            while True:
                token = self._script.own(self._number, self._length)
                self._length += 1
                finish = "stop" if token == EOS else "length" if self._length >= self._most else None
                yield Tokens([token], finish)
                self._check()
                if finish is not None:
                    return
        finally:
            self._finish()

    async def _run(self, operation: Operation[Any]) -> Any:
        match operation:
            case Draft(position, ids, window):
                position += len(ids)
                proposed = self._script.draft(self._number, position, min(window, self._most - position))
                self._length = position + len(proposed)
                return Drafts(proposed)
            case Extend(position, ids):
                self._length = position + len(ids)
                return None
        raise self._lacks(operation.name)

    async def cancel(self) -> None:
        self._end()
