"""A middle that sends back the hidden states of all positions, as HAT's paper has it.

Its U-shape needs 3.20 of 3.57 s for communication with a prompt of 2k tokens: at 10 MB/s up and 15 down, 1.68 s for
16.8 MB up and 1.12 s for as much down. Only the last position's are of use to the device, and mode split asks for no
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np

from tandem.engine.base import Engine, EngineInfo, EngineStats, Forwarded, Sampling, Session, Tensor


class Everything:
    """The Engine protocol over a middle's engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        session = _Session(await self._engine.open(prompt, sampling, log))
        return cast(Session, session)  # by `__getattr__`

    async def stats(self) -> EngineStats:
        return await self._engine.stats()

    async def close(self) -> None:
        await self._engine.close()


class _Session:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def forward(self, position: int, hidden: Tensor, wanted: int) -> Forwarded:
        forwarded = await self._session.forward(position, hidden, wanted)
        if not wanted:
            return msgspec.structs.replace(forwarded, hidden=hidden)
        back = forwarded.hidden  # what judges, in a frame as large as all of them
        data = np.broadcast_to(np.zeros(1, np.uint8), (hidden.data.nbytes,)).data
        return msgspec.structs.replace(forwarded, hidden=Tensor(back.shape, back.dtype, data))

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)
