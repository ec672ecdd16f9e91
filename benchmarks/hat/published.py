"""A middle that sends back the hidden states of all positions, as HAT's paper has it.

Its U-shape needs 3.20 of 3.57 s for communication with a prompt of 2k tokens: at 10 MB/s up and 15 down, 1.68 s for
16.8 MB up and 1.12 s for as much down. Only the last position's are of use to the device, and mode split asks for no
others.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import numpy as np

from tandem.engine.base import (
    Engine,
    EngineInfo,
    EngineStats,
    Forward,
    Forwarded,
    Operation,
    R,
    Sampling,
    Session,
    Tensor,
    Tokens,
)


class Everything:
    """The Engine protocol over a middle's engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        return _Session(await self._engine.open(prompt, sampling, log))

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()


class _Session(Session):
    def __init__(self, session: Session) -> None:
        self._session = session

    def generate(self) -> AsyncGenerator[Tokens, None]:
        return self._session.generate()

    async def call(self, operation: Operation[R]) -> R:
        result = await self._session.call(operation)
        if isinstance(operation, Forward) and isinstance(result, Forwarded):
            hidden, back = operation.hidden, result.hidden
            if operation.wanted:  # the states that judge, in a frame as large as all of them
                data = np.broadcast_to(np.zeros(1, np.uint8), (hidden.data.nbytes,)).data
                hidden = Tensor(back.shape, back.dtype, data)
            result.hidden = hidden
        return result

    async def cancel(self) -> None:
        await self._session.cancel()
