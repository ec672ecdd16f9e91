"""Traces of answers in every mode: which spans there are, and what they count."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.modes.sketch.mode import Sketched
from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.modes.split import Splitting
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.tracing.trace import Trace
from tandem.engine import family
from tandem.engine.base import NoCapacity, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.null.engine import NullEngine
from tandem.engine.torch.engine import load
from tandem.policies.race.dispatch import SERVER_ONLY
from tests.collector import Collector, Recorder
from tests.deployments.faults import PROMPT, Failing, World
from tests.deployments.modes import test_split as split
from tests.deployments.modes.race.test_mode import race
from tests.deployments.modes.sketch import test_mode as sketch

JOB = Job(11, PROMPT, Sampling(max_tokens=24))


async def traced(world: World, job: Job) -> tuple[Collector, JobStats]:
    """Run a job below a span `request`; return all spans and the job's stats."""
    recorder = Recorder()
    root = Trace(recorder.tracer, "request")
    *_, last = [delta async for delta in world.executor.run(replace(job, trace=root))]
    await world.executor.settled()
    root.end()
    assert last.stats is not None
    return recorder.recorded(), last.stats


def of_endpoints(mode: str, *operations: str) -> set[str]:
    return {"request", "request/assign", f"request/{mode}"} | {
        f"request/{mode}/{each}" for each in operations
    }


@pytest.mark.virtual_time
async def test_one_endpoint() -> None:
    for mode, wanted, endpoint in (
        ("cloud", JOB, "verifier:0"),
        ("device", replace(JOB, device="phone"), "phone"),
    ):
        found, _ = await traced(
            World([NullEngine(50)], devices={"phone": NullEngine(50)}), replace(wanted, mode=mode)
        )
        assert found.paths == sorted(of_endpoints(mode, "connect", "open", "decode"))
        assert found.named("assign").attributes["tandem.mode"] == mode
        decode = found.named("decode")
        assert decode.attributes["tandem.endpoint"] == endpoint
        assert decode.attributes["tandem.tokens"] == 24
        assert found.named("open").ended_ns <= decode.began_ns + 1_000 <= decode.ended_ns + 1_000


@pytest.mark.virtual_time
async def test_drafts_and_verdicts() -> None:
    world = World([NullEngine(50)], devices={"phone": NullEngine(50, mistake_every=3)})
    found, stats = await traced(world, replace(JOB, mode="speculative", device="phone"))
    counts = Speculation.of(stats)
    assert set(found.paths) == of_endpoints("speculative", "connect", "open", "draft", "verify")
    draft, verify, whole = (found.named(name).attributes for name in ("draft", "verify", "speculative"))
    assert (
        draft["tandem.drafted"] == verify["tandem.drafted"] == whole["tandem.drafted"] == counts.drafted > 0
    )
    assert verify["tandem.accepted"] == whole["tandem.accepted"] == counts.accepted > 0
    assert verify["tandem.calls"] == counts.rounds + 1
    assert verify["tandem.tokens"] == 24
    assert len(found.spans) < 12, "a round has no span of its own"


@pytest.mark.virtual_time
async def test_a_hand_over() -> None:
    world = race(NullEngine(50), NullEngine(50), SERVER_ONLY, at=(8,))
    found, stats = await traced(world, replace(JOB, mode="race", device="phone"))
    assert Racing.of(stats).migrations == 1
    assert set(found.paths) >= of_endpoints("race", "connect", "open", "decode", "hand_over")
    move = found.named("hand_over").attributes
    assert (move["tandem.source"], move["tandem.target"]) == ("verifier:0", "phone")
    ends = {span.attributes["tandem.endpoint"] for span in found.spans if span.name == "decode"}
    assert ends == {"phone", "verifier:0"}


async def test_an_expansion() -> None:
    target, small = (
        load(family.path(name), EngineConfig(kv_blocks=256), threads=1) for name in ("target", "small")
    )
    world, _ = sketch.world(target, {"a": small, "b": small})
    found, stats = await traced(world, sketch.job())
    await asyncio.gather(target.close(), small.close())
    assert Sketched.of(stats).sketches == 1
    mode = "request/sketch"
    written_and_judged = ("connect", "open", "decode", "cancel", "extend", "score")
    assert set(found.paths) == {
        *of_endpoints("sketch", "connect", "open", "decode", "cancel", "expansion"),
        *(f"{mode}/expansion/{each}" for each in written_and_judged),
    }
    (writing,) = [span for span in found.spans if span.name == "expansion"]
    written = [span for span in found.spans if span.parent == writing.id and span.name == "decode"]
    assert {span.attributes["tandem.endpoint"] for span in written} <= {"a", "b"}


async def test_hidden_states(tmp_path: Path) -> None:
    async with split.made(tmp_path) as parts:
        world = World(middles=[parts.middle], **split.told(parts))
        found, stats = await traced(world, split.job(split.LONG))
    assert set(found.paths) == of_endpoints("split", "connect", "open", "forward")
    assert found.named("forward").attributes["tandem.rows"] >= len(split.LONG)
    assert found.named("split").attributes["tandem.rounds"] == Splitting.of(stats).rounds


@pytest.mark.virtual_time
async def test_a_loss_begins_another_part() -> None:
    failing = Failing(NullEngine(50), "generate", after=5)
    found, _ = await traced(World([failing, NullEngine(50)]), replace(JOB, mode="cloud"))
    parts = [span for span in found.spans if span.name == "cloud"]
    assert [span.failed for span in sorted(parts, key=lambda span: span.began_ns)] == [True, False]
    assert len([span for span in found.spans if span.name == "assign"]) == 2
    (failed,) = [span for span in found.spans if span.name == "decode" and span.failed]
    assert failed.attributes["error.type"] == "EngineStopped"


@pytest.mark.virtual_time
async def test_a_refusal_leaves_no_span_open() -> None:
    full = Failing(NullEngine(50), "open", error=lambda: NoCapacity("full"))
    recorder = Recorder()
    root = Trace(recorder.tracer, "request")
    with pytest.raises(NoCapacity):
        _ = [delta async for delta in World([full]).executor.run(replace(JOB, mode="cloud", trace=root))]
    root.end()
    found = recorder.recorded()
    assert set(found.paths) == of_endpoints("cloud", "connect", "open")
