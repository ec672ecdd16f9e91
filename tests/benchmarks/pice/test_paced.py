"""Paced engine: the emulated pace, and the model's own tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from tandem.benchmarks.pice.embedded import TARGET, ask
from tandem.benchmarks.pice.paced import Paced, paced
from tandem.engine import family
from tandem.engine.config import EngineConfig, HostMemory
from tandem.engine.core.engine import CoreEngine
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.torch.engine import load
from tandem.training.family.prompts import heldout


class Taking:
    """A runner that takes so many seconds a step, and notes what it is asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.copied: list[tuple[int, int]] = []

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        end_s = time.monotonic() + self.seconds
        while time.monotonic() < end_s:
            pass
        return [Outcome(0, 7) for _ in complete]

    def copy_block(self, source: int, target: int) -> None:
        self.copied.append((source, target))

    def free_block(self, block: int) -> None:
        self.copied.append((block, -1))

    def host_copies(self, settings: HostMemory, clock: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("takes_s", "step_s", "late"), [(0.0, 0.02, 0), (0.02, 0.001, 1)])
def test_a_step_takes_what_it_is_to_take_and_is_late_where_it_cannot(
    takes_s: float, step_s: float, late: int
) -> None:
    inner = Taking(takes_s)
    runner = Paced(inner, step_s)  # type: ignore[arg-type]
    began_s = time.monotonic()
    assert runner.run([], []) == []
    assert time.monotonic() - began_s >= max(takes_s, step_s)
    assert (runner.steps, runner.late) == (1, late)
    runner.copy_block(3, 5)
    runner.free_block(4)
    assert inner.copied == [(3, 5), (4, -1)]


async def said(engine: CoreEngine) -> list[int]:
    job = ask(heldout(1, ["fact"])[0], "cloud")
    session = await engine.open(job.prompt, job.sampling)
    ids = [token async for tokens in session.generate() for token in tokens.ids]
    await session.cancel()
    await engine.close()
    return ids


@pytest.mark.slow
async def test_the_tokens_are_the_models_own() -> None:
    engine, pace = paced(TARGET, EngineConfig(), step_s=0.001)
    plain = load(family.path(TARGET), EngineConfig(), device="cpu", threads=1)
    assert engine.info == plain.info
    found = await said(engine)
    assert found == await said(plain)
    assert pace.steps >= len(found)
