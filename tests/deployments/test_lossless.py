"""Greedy speculation says exactly what the cloud's model says alone, on the real pair, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.device import Device
from cluster.endpoint import serve_engines
from cluster.link import Link, LinkProfile
from cluster.profile import load_profile
from cluster.remote import connect
from deployments.assignment import Assignment, EndpointInfo, Wishes
from deployments.executor import Executor
from deployments.job import Job, JobStats
from engine import family
from engine.base import Engine, Sampling
from engine.family.prompts import heldout_questions
from engine.text import Tokenizer
from engine.torch_engine import TorchEngine
from policies.window import StaticWindow, WindowPolicy
from tests.deployments.faults import Script

PROMPTS = 200
AT_ONCE = 32


@asynccontextmanager
async def _pair() -> AsyncIterator[dict[str, Engine]]:
    """The pair, as local engines behind a real connection; the device has a link of 2 ms."""
    target = TorchEngine.load(family.path("target"), threads=2, max_waiting=PROMPTS)
    small = TorchEngine.load(family.path("small"), threads=1, max_waiting=PROMPTS)
    device = Device(small, msgspec.structs.replace(load_profile("native"), sessions=PROMPTS))
    served: dict[str, Engine] = {"target": target, "drafter": small, "device": device}
    async with serve_engines(served) as endpoint:
        connection = await connect(endpoint.address)
        yield {
            "target": connection.engine("target"),
            "drafter": connection.engine("drafter"),
            "device": connection.engine("device", Link(LinkProfile(rtt_s=0.002))),
        }
        await connection.close()
    await target.close()
    await small.close()


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, Engine]]:
    async with _pair() as engines:
        yield engines


def _endpoint(name: str) -> EndpointInfo:
    return EndpointInfo(name, "", name)


CLOUD = Assignment("cloud", _endpoint("target"))
SWITCHING = Assignment(
    "speculative",
    _endpoint("target"),
    _endpoint("device"),
    "device",
    fused=_endpoint("drafter"),
    batch_limit=64,
)


async def _answers(
    engines: dict[str, Engine],
    assignment: Assignment,
    window: Callable[[], WindowPolicy] = StaticWindow,
    prompts: int = PROMPTS,
) -> list[tuple[tuple[int, ...], JobStats]]:
    async def assign(wishes: Wishes) -> Assignment:
        return assignment

    async def dial(endpoint: EndpointInfo) -> Engine:
        return engines[endpoint.engine]

    executor = Executor(assign, dial, window)
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
        assert stats.replans == 0
        return tuple(ids), stats

    questions = heldout_questions(prompts, seed=11)
    return await asyncio.gather(*(answer(n, question) for n, question in enumerate(questions)))


@pytest.mark.timeout(300)
async def test_speculative_output_is_the_targets_own(engines: dict[str, Engine]) -> None:
    cloud = [ids for ids, _ in await _answers(engines, CLOUD)]
    for drafter, size in (("drafter", 4), ("device", 6)):
        assignment = Assignment("speculative", _endpoint("target"), _endpoint(drafter))
        answers = await _answers(engines, assignment, lambda size=size: StaticWindow(size))
        assert [ids for ids, _ in answers] == cloud
        stats = [s for _, s in answers]
        assert sum(s.rounds for s in stats) > 0
        assert sum(s.accepted for s in stats) > 0, "nothing was accepted: the test would prove little"
        assert sum(s.accepted for s in stats) < sum(s.drafted for s in stats)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fused", [True, False], ids=["cloud-drafter", "target-alone"])
def test_switching_in_mid_answer_loses_nothing(fused: bool) -> None:
    """Whatever the windows. Answers that run at once take them in turn, so each has a sequence of its own."""
    prompts = 6
    assignment = SWITCHING if fused else replace(SWITCHING, fused=None)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        engines = runner.run(stack.enter_async_context(_pair()))
        try:
            cloud = [ids for ids, _ in runner.run(_answers(engines, CLOUD, prompts=prompts))]
            switches = accepted = 0

            @settings(max_examples=8, deadline=None)
            @given(windows=st.lists(st.just(1) | st.integers(1, 12), min_size=1, max_size=12))
            def unchanged(windows: list[int]) -> None:
                nonlocal switches, accepted
                answers = runner.run(_answers(engines, assignment, lambda: Script(windows), prompts))
                assert [ids for ids, _ in answers] == cloud
                switches += sum(stats.switches for _, stats in answers)
                accepted += sum(stats.accepted for _, stats in answers)

            unchanged()
        finally:
            runner.run(stack.aclose())
    assert switches > 0
    assert accepted > 0
