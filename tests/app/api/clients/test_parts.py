"""A feature that works without its mode does not pass for working in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tandem.deployments.request.job import Job
from tandem.engine.base import Sampling
from tandem.engine.sketch.base import Question
from tests.app.api.clients.modes_backend import ModesBackend
from tests.app.api.clients.pairs import Pair, scripted_pair
from tests.app.api.clients.programs.asking import TIPS
from tests.app.api.clients.run_programs import MODES, Line, judged
from tests.deployments.faults import Failing

CHAT = [{"role": "user", "content": TIPS}]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = scripted_pair()
    yield made
    await made.close()


async def outcome(mode: str, pair: Pair, ledger: Path) -> Line:
    """Return what comes of a chat that its client is content with."""
    backend = ModesBackend(mode, *pair, ledger)
    prompt = tuple(pair.tokenizer.render_chat(CHAT))
    question = Question(prompt, CHAT, TIPS)
    deltas = [
        delta async for delta in backend.run(Job(1, prompt, Sampling(max_tokens=200), question=question))
    ]
    assert deltas[-1].finish == "stop"
    await backend.world.executor.settled()
    return judged(Line("client", "1", mode, "a chat", "works"), backend.answers)


@pytest.mark.parametrize("mode", MODES)
async def test_a_mode_takes_its_part(mode: str, pair: Pair, tmp_path: Path) -> None:
    assert await outcome(mode, pair, tmp_path / "ledger") == Line("client", "1", mode, "a chat", "works")


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "cloud"])
async def test_an_answer_of_the_cloud_alone_fails(mode: str, pair: Pair, tmp_path: Path) -> None:
    broken = Failing(pair.small, "open")
    line = await outcome(mode, pair._replace(small=broken), tmp_path / "ledger")
    assert broken.fired
    assert line.outcome == "fails"
    assert line.error.startswith("answered without")
