"""Sessions when the path to their engine is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tandem.cluster.link.link import Link, LinkProfile
from tandem.engine.base import EngineStopped, Sampling
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.simulator.clock import VirtualLoop
from tandem.simulator.world.network import LinkedEngine, Path


class SlowEngine(NullEngine):
    """Takes a second to open a session."""

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        await asyncio.sleep(1.0)
        return await super().open(prompt, sampling, log)


@pytest.mark.parametrize("heals", [False, True])
def test_a_session_that_is_opened_when_the_path_is_cut_is_ended(heals: bool) -> None:
    loop, engine = VirtualLoop(), SlowEngine()  # type: ignore[abstract]

    async def main() -> int:
        path = Path.to_device(loop, Link(LinkProfile(rtt_s=0.01)))
        loop.call_later(0.5, path.cut)
        if heals:
            loop.call_later(1.5, path.heal)
        with pytest.raises(EngineStopped):
            await LinkedEngine(engine, path).open([5], Sampling())
        await asyncio.sleep(2.0)
        return (await engine.stats()).sessions

    assert loop.run(main()) == 0
