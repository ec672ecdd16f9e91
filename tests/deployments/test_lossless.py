"""Greedy speculation says exactly what the cloud's model says alone, on the real pair, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.endpoint import serve_engines
from cluster.link import Link, LinkProfile
from cluster.remote import connect
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.executor import Executor
from deployments.job import Job, JobStats
from engine import family
from engine.base import Engine, Sampling
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer
from engine.torch_engine import TorchEngine
from policies.window import StaticWindow

PROMPTS = 200
AT_ONCE = 32


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, Engine]]:
    """The pair, as local engines behind a real connection; the device has a link of 2 ms."""
    target = TorchEngine.load(family.path("target"), threads=2, max_waiting=PROMPTS)
    small = TorchEngine.load(family.path("small"), threads=1, max_waiting=PROMPTS)
    async with serve_engines({"target": target, "drafter": small}) as endpoint:
        connection = await connect(endpoint.address)
        yield {
            "target": connection.engine("target"),
            "drafter": connection.engine("drafter"),
            "device": connection.engine("drafter", Link(LinkProfile(rtt_s=0.002))),
        }
        await connection.close()
    await target.close()
    await small.close()


async def _answers(
    engines: dict[str, Engine], mode: str, drafter: str | None, window: int
) -> list[tuple[tuple[int, ...], JobStats]]:
    async def assign(wishes: Wishes) -> Assignment:
        drafts = EndpointInfo(drafter, "", drafter) if drafter else None
        return Assignment(mode, EndpointInfo("target", "", "target"), drafts)

    async def dial(endpoint: EndpointInfo) -> Engine:
        return engines[endpoint.engine]

    executor = Executor(assign, dial, lambda: StaticWindow(window))
    tokenizer = Tokenizer.load(family.path("target"))
    room = asyncio.Semaphore(AT_ONCE)

    async def answer(number: int, question: str) -> tuple[tuple[int, ...], JobStats]:
        prompt = tokenizer.render_chat([{"role": "user", "content": question}])
        job = Job(number + 1, tuple(prompt), Sampling(max_tokens=120))
        ids: list[int] = []
        async with room:
            async for delta in executor.run(job):
                ids += delta.ids
                if delta.stats is not None:
                    stats = delta.stats
        await executor.settled()
        return tuple(ids), stats

    questions = heldout_questions(PROMPTS, seed=11)
    return await asyncio.gather(*(answer(n, question) for n, question in enumerate(questions)))


@pytest.mark.timeout(300)
async def test_speculative_output_is_the_targets_own(engines: dict[str, Engine]) -> None:
    cloud = [ids for ids, _ in await _answers(engines, "cloud", None, 4)]
    for drafter, window in (("drafter", 4), ("device", 6)):
        answers = await _answers(engines, "speculative", drafter, window)
        assert [ids for ids, _ in answers] == cloud
        stats = [s for _, s in answers]
        assert sum(s.rounds for s in stats) > 0
        assert sum(s.accepted for s in stats) > 0, "nothing was accepted: the test would prove little"
        assert sum(s.accepted for s in stats) < sum(s.drafted for s in stats)
