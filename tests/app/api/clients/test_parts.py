"""A feature that works without its mode does not pass for working in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tandem.deployments.request.job import Job
from tandem.engine.base import Engine, Sampling
from tandem.engine.sketch.base import Question
from tests.app.api.clients.modes_backend import ModesBackend
from tests.app.api.clients.programs.asking import TIPS
from tests.app.api.clients.run_programs import MODES, Line, answer, judged
from tests.app.api.clients.scripted_engine import scripted
from tests.app.api.null_backend import TOKENIZER
from tests.deployments.faults import Failing

CHAT = [{"role": "user", "content": TIPS}]


@pytest.fixture
async def target() -> AsyncIterator[Engine]:
    engine = scripted(answer, "target")
    yield engine
    await engine.close()


@pytest.fixture
async def small() -> AsyncIterator[Engine]:
    engine = scripted(answer, "small")
    yield engine
    await engine.close()


async def outcome(mode: str, target: Engine, small: Engine, ledger: Path) -> Line:
    """Return what comes of a chat that its client is content with."""
    backend = ModesBackend(mode, target, small, TOKENIZER, ledger)
    prompt = tuple(TOKENIZER.render_chat(CHAT))
    question = Question(prompt, CHAT, TIPS)
    deltas = [
        delta async for delta in backend.run(Job(1, prompt, Sampling(max_tokens=200), question=question))
    ]
    assert deltas[-1].finish == "stop"
    await backend.world.executor.settled()
    return judged(Line("client", "1", mode, "a chat", "works"), backend.answers)


@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_takes_its_part(mode: str, target: Engine, small: Engine, tmp_path: Path) -> None:
    assert await outcome(mode, target, small, tmp_path / "ledger") == Line(
        "client", "1", mode, "a chat", "works"
    )


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "cloud"])
async def test_an_answer_of_the_cloud_alone_fails(
    mode: str, target: Engine, small: Engine, tmp_path: Path
) -> None:
    broken = Failing(small, "open")
    line = await outcome(mode, target, broken, tmp_path / "ledger")
    assert broken.fired
    assert line.outcome == "fails"
    assert line.error.startswith("answered without")
