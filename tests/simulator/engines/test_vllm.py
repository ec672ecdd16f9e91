"""vLLM in virtual time: the contract of all engines, scripts, step times, scheduling, determinism, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Coroutine
from functools import partial
from importlib import import_module
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tandem.simulator.chaos as chaos
from tandem.deployments.request.job import Job
from tandem.deployments.request.timeouts import Limits
from tandem.engine import vllm
from tandem.engine.base import Engine, InvalidRequest, NoCapacity, Sampling
from tandem.engine.config import SchedulingChoice
from tandem.engine.vllm.config import VllmConfig
from tandem.simulator.clock import VirtualLoop
from tandem.simulator.config.config import Config, parse
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.engines.engine import Compute, Hardware
from tandem.simulator.engines.script import EOS, TOKEN, Script
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request, build
from tandem.simulator.world.world import World
from tests.deployments.faults import World as Endpoints
from tests.engine_contract import CHECKS, close_ends_it
from tests.simulator import worlds
from tests.simulator.configurations import TARGET, raw
from tests.simulator.test_invariants import REFUSALS
from tests.simulator.timers import Linear

scenario = import_module("tandem.simulator.chaos.scenario")  # beside a function of that name

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

CONFIG = VllmConfig(kv_blocks=64, block_size=16, token_budget=64, max_sessions=32)
PLAIN = CONFIG.model_copy(update={"window": 0})
"""Without a speculator: steps are scheduled ahead of those that run."""
BOTH = pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["speculating", "plain"])
VLLM = {"kind": "vllm", "block_size": 16}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    vllm.set_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        import tandem.simulator.engines.vllm  # noqa: F401


class Alone:
    """A loop, a script, and engines on them."""

    def __init__(self) -> None:
        self.loop, self.script = VirtualLoop(), Script()  # type: ignore[abstract]
        self.timer = Linear()

    def engine(
        self,
        config: VllmConfig = CONFIG,
        *,
        hardware: Hardware | None = None,
        drafts: bool = False,
        **timer: float,
    ) -> Any:
        from tandem.simulator.engines.vllm import timed_vllm

        self.timer = Linear(**timer)
        compute = Compute(hardware or Hardware(self.loop), self.timer)
        return timed_vllm("timed", config, compute, self.script, drafts=drafts)

    def prompt(self, tokens: int = 8, output: int = 1000, acceptance: bytes | None = None) -> list[int]:
        return list(self.script.add(Request(0.0, tokens, output, acceptance)))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run(main)


@BOTH
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check: Any, config: VllmConfig) -> None:
    alone = Alone()
    alone.run(check(alone.engine(config), alone.prompt()))


@BOTH
def test_contract_of_close(config: VllmConfig) -> None:
    alone = Alone()
    parts = attrgetter("_core", "_core.scheduler")
    alone.run(close_ends_it(partial(alone.engine, config), alone.prompt(), parts, step_s=1.0))


async def answer(
    engine: Engine, prompt: list[int], sampling: Sampling
) -> tuple[list[int], str | None, list[float]]:
    loop, ids, times = asyncio.get_running_loop(), list[int](), list[float]()
    session = await engine.open(prompt, sampling)
    finish = None
    async for tokens in session.generate():
        ids += tokens.ids
        times.append(loop.time())
        finish = tokens.finish
    await session.cancel()
    return ids, finish, times


def test_a_step_takes_what_the_timer_says() -> None:
    alone = Alone()
    ids, finish, times = alone.run(
        answer(alone.engine(step=1.0, token=0.1), alone.prompt(8, output=4), Sampling(max_tokens=100))
    )
    assert ids == [TOKEN, TOKEN + 1, TOKEN + 2, EOS]
    assert finish == "stop"
    assert times == pytest.approx([1.8, 2.9, 4.0, 5.1])  # 8 positions, then one at a time


def test_the_timer_is_told_of_prompts_and_windows() -> None:
    async def main() -> None:
        target = alone.engine(CONFIG.model_copy(update={"token_budget": 50}))
        drafter = Alone.engine(alone, drafts=True)
        alone.timer = target._core._compute.timer
        session = await target.open(prompt, Sampling(max_tokens=100))
        await session.verify([])
        draft = await (await drafter.open(prompt, Sampling(max_tokens=100), [TOKEN])).draft(1, [], 3)
        verdict = await session.verify(draft.ids)
        assert (draft.ids, verdict.accepted, verdict.ids) == (
            [TOKEN + 1, TOKEN + 2, 3],
            2,
            [TOKEN + 1, TOKEN + 2, TOKEN + 3],
        )

    alone = Alone()
    prompt = alone.prompt(80, output=9, acceptance=bytes([1, 1, 1, 0, 1, 1, 1, 1, 1]))
    alone.run(main())
    # two chunks of the prompt, then the last token and three drafts
    assert alone.timer.asked == [(50, 0, 0, ((50, 0),)), (30, 0, 0, ((30, 50),)), (4, 1, 80, ())]


@BOTH
@pytest.mark.parametrize("tokens", [0, 5])
def test_requests_leave_a_core_whose_process_is_stopped(config: VllmConfig, tokens: int) -> None:
    """In its prompt or in mid-answer: within three seconds, and with the answer that it would have given."""

    async def main() -> None:
        engines = [alone.engine(config, step=0.1) for _ in range(2)]
        world = Endpoints(engines, limits=Limits())
        ids, times_s = list[int](), [0.0]

        async def stop() -> None:
            while len(ids) < tokens or not any(e.sessions for e in engines):  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.05)
            next(engine for engine in engines if engine.sessions)._core.stop()

        stopping = asyncio.create_task(stop())
        async for delta in world.executor.run(Job(1, tuple(prompt), Sampling(max_tokens=100), mode="cloud")):
            ids.extend(delta.ids)
            times_s.append(alone.loop.time())
        await stopping
        assert ids == [*range(TOKEN, TOKEN + 19), EOS]
        assert 1.25 < max(after - before for before, after in pairwise(times_s)) < 3.0
        assert [(await engine.stats()).overdue_s > 0 for engine in engines] == [True, False]
        await asyncio.gather(*(engine.close() for engine in engines))
        await world.executor.settled()

    alone = Alone()
    prompt = alone.prompt(8, output=20)
    alone.run(main())


@pytest.mark.parametrize("window", [8, 0])
@pytest.mark.parametrize("scheduling", [None, "fcfs", "buffer_aware", "andes"])
def test_under_pressure_all_come_to_their_end_the_same_way_each_time(
    scheduling: str | None, window: int
) -> None:
    def once() -> list[Any]:
        alone = Alone()
        config = VllmConfig(
            kv_blocks=9,
            block_size=16,
            token_budget=32,
            max_sessions=8,
            max_waiting=100,
            window=window,
            scheduling=scheduling and SchedulingChoice(name=scheduling),
        )

        async def main() -> list[Any]:
            engine = alone.engine(config, step=0.01, token=1e-4)
            answers = await asyncio.gather(
                *(
                    answer(engine, alone.prompt(5 + i % 7, output=20 + i), Sampling(60, reader_rate=5.0 + i))
                    for i in range(20)
                )
            )
            await asyncio.sleep(1)
            stats = await engine.stats()
            assert stats.decisions > 0 or scheduling is None
            assert (stats.sessions, stats.blocks_free, stats.finished) == (0, 8, 20)
            assert (engine.blocks_used, engine.sessions) == (0, 0)
            assert not engine._core.scheduler._views
            assert not engine._core._outputs
            return [answers, stats.preempted, stats.steps, alone.loop.events]

        return list(alone.run(main()))

    first = once()
    assert [ids for ids, _, _ in first[0]] == [[*range(TOKEN, TOKEN + 19 + i), EOS] for i in range(20)]
    assert first[1] > 0 or scheduling not in (None, "buffer_aware")
    assert once() == first


@pytest.mark.parametrize(("blocks", "count"), [(64, 5), (8, 3)], ids=["ample", "tight"])
def test_parked_sessions_that_are_asked_on_together_may_be_more_than_there_are_places(
    blocks: int, count: int
) -> None:
    async def main() -> None:
        engine = alone.engine(CONFIG.model_copy(update={"max_sessions": 2, "kv_blocks": blocks}))
        prompts = [alone.prompt(30, output=9) for _ in range(count)]
        sessions = [await engine.open(prompt, Sampling(max_tokens=20)) for prompt in prompts]
        for session in sessions:
            assert (await session.verify([])).ids == [TOKEN]
        verdicts = await asyncio.gather(*(session.verify([TOKEN + 1, TOKEN + 2]) for session in sessions))
        assert [verdict.accepted for verdict in verdicts] == [2] * count
        for session in sessions:
            await session.cancel()

    alone = Alone()
    alone.run(main())


def test_what_is_refused() -> None:
    async def main() -> None:
        engine = alone.engine(CONFIG.model_copy(update={"max_sessions": 1, "max_waiting": 1}))
        with pytest.raises(InvalidRequest, match="tokenizer"):
            await engine.open(alone.prompt(), Sampling(max_tokens=9, stop=("end",)))
        sessions = [await engine.open(alone.prompt(), Sampling(max_tokens=9)) for _ in range(2)]
        with pytest.raises(NoCapacity):
            await engine.open(alone.prompt(), Sampling(max_tokens=9))
        for session in sessions:
            await session.cancel()

    alone = Alone()
    alone.run(main())


def test_engines_share_their_hardware() -> None:
    async def main() -> None:
        hardware = Hardware(alone.loop)
        engines = [alone.engine(hardware=hardware, step=1.0, token=0.0) for _ in range(2)]
        done = await asyncio.gather(
            *(
                answer(engine, alone.prompt(2, output=output), Sampling(max_tokens=9))
                for engine, output in zip(engines, (4, 2), strict=True)
            )
        )
        assert [times for _, _, times in done] == [
            pytest.approx([2.0, 4.0, 5.0, 6.0]),
            pytest.approx([2.0, 4.0]),
        ]

    alone = Alone()
    alone.run(main())


# -- whole simulations --------------------------------------------------------------------------------------


def config(**changes: Any) -> Config:
    return parse(raw(**({"engine": VLLM, "history": True} | changes)))


@pytest.mark.parametrize("window", [8, 0])
@pytest.mark.parametrize("mode", ["cloud", "speculative", "race", None])
def test_every_request_gets_the_tokens_of_its_script(mode: str | None, window: int) -> None:
    engine = {**VLLM, "window": window}
    made = config(
        mode=mode, engine=engine, targets=[{**TARGET, "count": 2, "measured_draft": {"base_s": 0.004}}]
    )
    asked = build(made.workload)
    world, answers = worlds.run(made, asked)
    for one, request in zip(answers, asked, strict=True):
        assert one.ids == [*range(TOKEN, TOKEN + request.output_tokens - 1), EOS]
        assert one.finish == "stop"
    for server in (*world.servers, *world.drafters):
        assert (server.open_sessions, server.core.blocks_used) == (0, 0)
    assert not asyncio.all_tasks(world.loop)


HOSTS: list[dict[str, Any]] = [
    {},
    {"options": {"kv_offloading_size": 0.0005}, "copy_mb_per_s": 100},
    {"options": {"kv_offloading_size": 0.03}, "copy_mb_per_s": 0.5},
]
"""Host memory of an engine: none, for 32 blocks, for all on a slow link."""


@given(
    asked=worlds.requests(),
    world=worlds.worlds(),
    window=st.sampled_from([8, 0]),
    host=st.sampled_from(HOSTS),
)
def test_whatever_is_configured_nothing_is_lost_and_nothing_left(
    asked: list[Request], world: dict[str, Any], window: int, host: dict[str, Any]
) -> None:
    shared = ("scheduling", "max_sessions", "max_waiting", "token_budget", "kv_blocks", "latency")
    engine = {**VLLM, "window": window, **{key: world["engine"][key] for key in shared}, **host}
    after, answers = worlds.run(config(**{**world, "engine": engine}), asked)
    for one, request in zip(answers, asked, strict=True):
        whole = [*range(TOKEN, TOKEN + request.output_tokens - 1), EOS]
        most = min(request.output_tokens, request.max_tokens or request.output_tokens)
        assert one.finished != (one.failure is not None)
        assert one.failure is None or one.failure in REFUSALS
        assert one.ids == whole[: most if one.finished else one.tokens]
    for server in (*after.servers, *after.drafters):
        assert server.open_sessions == 0
        assert server.core.blocks_used == 0 or not server.alive
    assert not asyncio.all_tasks(after.loop)


def test_where_memory_is_ample_it_takes_the_steps_that_the_torch_engine_takes() -> None:
    """Equal requests, equal hardware, whole prompts at once: then vLLM takes the steps of our own core."""
    whole = {"batching": {"name": "fifo"}, "token_budget": 2048}
    figures = [
        simulate(config(mode=mode, engine=engine)).summary()
        for mode in ("cloud", "speculative")
        for engine in (VLLM, whole)
    ]
    for ours, torchs in (figures[:2], figures[2:]):
        assert ours["modes"] == torchs["modes"]
        for key in ("steps", "span_s", "tokens_per_s"):
            assert ours[key] == pytest.approx(torchs[key], rel=0.02)
        for key in ("ttft_s", "tpot_s"):
            assert ours[key]["mean"] == pytest.approx(torchs[key]["mean"], rel=0.02)


def burst(scheduling: str | None) -> Result:
    """Forty readers at once, and room for sixteen."""
    engine = {**VLLM, "kv_blocks": 129, "max_sessions": 16}
    made = parse(
        raw(
            mode="cloud",
            reader="cloud",
            engine={**engine, "scheduling": scheduling and {"name": scheduling}},
            targets=[TARGET],
            devices=[],
        )
    )
    asked = [Request(0.01 * i, 40, 80, reader_rate=5.0) for i in range(40)]
    return simulate(made, requests=asked)


def test_buffers_let_a_burst_begin_sooner() -> None:
    p99 = {}
    for name in (None, "fcfs", "buffer_aware"):
        result = burst(name)
        assert all(one.finish == "stop" for one in result.answers)
        p99[name] = result.summary()["ttft_s"]["p99"]
    assert p99["buffer_aware"] < 0.7 * min(p99[None], p99["fcfs"])


def test_a_server_that_is_killed_loses_what_it_had() -> None:
    async def main() -> None:
        session = await world.servers[0].engine.open(
            world.script.add(Request(0.0, 8, 50)), Sampling(max_tokens=60)
        )
        stream = session.generate()
        await anext(stream)
        await world.servers[0].kill()
        with pytest.raises(Exception, match="closed"):
            await anext(stream)

    world = World(config())
    world.loop.run(main())


DIGEST = """
import warnings
from tandem.deployments.request.job import Job
from tandem.deployments.request.timeouts import Limits
from tandem.engine import vllm
vllm.set_environment()
warnings.simplefilter("ignore")
from tests.simulator.engines.test_vllm import digest
print(digest())
"""


def digest() -> str:
    """Return a digest of three simulations' results."""
    tight = {**VLLM, "kv_blocks": 13, "max_sessions": 6, "scheduling": {"name": "buffer_aware"}}
    said = []
    for mode in ("cloud", "speculative", None):
        result = simulate(config(mode=mode, engine=tight))
        said.append([result.summary(), [(one.ids, list(one.times_s)) for one in result.answers]])
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def test_it_is_the_same_in_any_process() -> None:
    here = digest()
    assert digest() == here
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", DIGEST]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.split()[-1] == here


# -- what is said of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"batching": {"name": "fifo"}}, r"engine\.batching: no such key.*allowed: .*token_budget"),
        ({"max_sesions": 4}, r"engine\.max_sesions: no such key, did you mean max_sessions\?"),
        ({"kv_blocks": 1}, r"engine\.kv_blocks: .*8"),
        ({"options": {"max_modl_len": 9}}, r"engine: options\.max_modl_len: .*did you mean max_model_len\?"),
        ({"options": {"block_size": 9}}, r"engine: options\.block_size: that is set by engine\.block_size"),
        ({"speculation": {"method": "ngram"}}, r"engine\.speculation: a simulation does not know"),
        ({"scheduling": {"name": "nobody"}}, r"engine\.scheduling: no scheduling policy 'nobody'"),
    ],
)
def test_mistakes_are_told_in_one_line(engine: dict[str, Any], message: str) -> None:
    for made in (raw(engine={**VLLM, **engine}), raw(targets=[{**TARGET, "engine": {**VLLM, **engine}}])):
        with pytest.raises(ConfigError, match=message):
            parse(made)


def test_the_kind_of_all_holds_where_a_target_says_nothing() -> None:
    own = {**TARGET, "engine": {"window": 3}}
    other = {**TARGET, "engine": {"kind": "torch", "kv_blocks": 99}}
    made = config(engine={**VLLM, "max_sessions": 5}, targets=[TARGET, own, other])
    first, second, third = (group.complete_engine(None) for group in made.topology()[0])
    assert (first.kind, first.max_sessions, first.block_size) == ("vllm", 5, 16)
    assert (first.kv_blocks, first.token_budget) == (1024, 2048)
    assert (second.kind, second.max_sessions, second.window) == ("vllm", 5, 3)
    assert (third.kind, third.max_sessions, third.block_size, third.kv_blocks) == ("torch", 5, 16, 99)
    assert parse(made.as_given()) == made


def test_on_named_hardware_memory_follows_from_it() -> None:
    target = {"hardware": "4xA100", "model": "Llama-2-70B"}
    made = config(targets=[target, {**target, "engine": {"kind": "torch"}}])
    engine, torchs = (group.complete_engine(None) for group in made.topology()[0])
    assert abs(engine.kv_blocks - torchs.kv_blocks) <= 1
    assert (engine.max_sessions, engine.max_waiting, engine.token_budget) == (256, 1_000_000, 2048)
    sources = simulate(replace_count(made, 2)).estimates["4xA100 Llama-2-70B"]
    assert "batching" in sources


def replace_count(made: Config, count: int) -> Config:
    workload = made.workload.model_copy(update={"count": count})
    return made.model_copy(update={"workload": workload})


WITHOUT_TORCH = """
import sys
for name in ("torch", "ray", "vllm"):
    sys.modules[name] = None  # whoever imports it fails
from tandem.simulator.config.config import parse
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.runs.run import simulate
from tests.simulator.configurations import raw
assert simulate(parse(raw())).summary()["finished"] == 12
made = parse(raw(engine={"kind": "vllm"}))
try:
    simulate(made)
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_only_a_simulation_of_vllm_imports_it() -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stdout.split() == ["torch"]


@pytest.mark.parametrize("window", [8, 0])
@pytest.mark.parametrize("seed", [906, 1480, 4101, *range(1000, 1020)])
def test_promises_hold_whatever_breaks(seed: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_vllm(made: dict[str, Any]) -> Config:
        return parse({**made, "engine": {**made["engine"], **VLLM, "window": window}})

    monkeypatch.setattr(scenario, "parse", of_vllm)
    assert not chaos.play(seed).broken
