"""vLLM with host memory, in virtual time: what is preempted is loaded, and the policy knows of it."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import numpy as np
import pytest

from tandem.engine import vllm
from tandem.engine.vllm.config import VllmConfig
from tandem.policies.scheduling.base import EngineLoad, Ints
from tandem.policies.scheduling.buffer_aware import BufferAware
from tandem.simulator.config.config import Config, parse
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.engines.script import EOS, TOKEN
from tandem.simulator.workload import Request
from tests.simulator import worlds
from tests.simulator.configurations import TARGET, raw

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TOKEN_BYTES = 1024
MB_PER_S = 100.0
SIZE = 0.03
"""Gibibytes: room for all."""
BOTH = pytest.mark.parametrize("window", [8, 0], ids=["speculating", "plain"])


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    vllm.set_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        import tandem.simulator.engines.vllm  # noqa: F401


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[EngineLoad]:
    """Record what the policy is told, decision by decision."""
    told: list[EngineLoad] = []
    choose = BufferAware.choose

    def listen(policy: BufferAware, load: EngineLoad) -> Ints:
        told.append(load)
        return choose(policy, load)

    monkeypatch.setattr(BufferAware, "choose", listen)
    return told


def made(window: int, size: float | None = SIZE, **engine: Any) -> Config:
    host: dict[str, Any] = (
        {} if size is None else {"options": {"kv_offloading_size": size}, "copy_mb_per_s": MB_PER_S}
    )
    limits = {"kv_blocks": 129, "block_size": 16, "max_sessions": 16, "window": window}
    engine = {"kind": "vllm", **limits, "scheduling": {"name": "buffer_aware"}, **host, **engine}
    target = {**TARGET, "kv_bytes": TOKEN_BYTES}
    return parse(raw(mode="cloud", reader="cloud", history=True, engine=engine, targets=[target], devices=[]))


def burst(config: Config) -> tuple[Any, Any]:
    """Forty readers at once, and room for sixteen: the server's counters, and the answers."""
    asked = [Request(0.01 * i, 40, 80, reader_rate=5.0) for i in range(40)]
    world, answers = worlds.run(config, asked)
    for one in answers:
        assert one.ids == [*range(TOKEN, TOKEN + 79), EOS]
    (server,) = world.servers
    assert (server.open_sessions, server.core.blocks_used) == (0, 0)
    assert not asyncio.all_tasks(world.loop)
    return server.core.gauges(), answers


@BOTH
def test_what_is_preempted_is_loaded_and_not_computed_again(window: int) -> None:
    with_host, _ = burst(made(window))
    without, _ = burst(made(window, size=None))
    assert with_host.preempted > 10
    assert without.preempted > 10
    assert (without.tokens_loaded, without.blocks_written) == (0, 0)
    assert with_host.tokens_loaded > 16 * 10
    assert with_host.blocks_written > 40 * 40 // 16, "outputs are written, too, not prompts alone"
    again = with_host.tokens_prefilled / with_host.preempted
    assert again < 0.5 * without.tokens_prefilled / without.preempted


@BOTH
def test_the_policy_knows_what_lies_there_and_how_long_it_takes(window: int, loads: list[EngineLoad]) -> None:
    burst(made(window))
    told = [load.copy_s for load in loads if np.isfinite(load.copy_s)]
    assert told[-1] == pytest.approx(TOKEN_BYTES / (MB_PER_S * 1e6))
    away = [load.stored.sum() for load in loads if not load.running.all()]
    assert max(away) >= 40
    assert all((load.stored <= load.missing).all() for load in loads)
    loads.clear()
    burst(made(window, copy_mb_per_s=1.0))
    assert max(load.copy_queue_s for load in loads) > 0, "loads wait for each other on a slow link"


def test_without_it_everything_is_computed_again(loads: list[EngineLoad]) -> None:
    burst(made(0, size=None))
    assert {load.copy_s for load in loads} == {float("inf")}
    assert not any(load.stored.any() for load in loads)


@BOTH
def test_memory_that_is_too_small_keeps_what_it_can(window: int) -> None:
    small, _ = burst(made(window, size=SIZE / 20))
    large, _ = burst(made(window))
    assert 0 < small.tokens_loaded < large.tokens_loaded


def test_a_simulation_has_to_be_told_the_link() -> None:
    with pytest.raises(
        ConfigError, match=r"engine: copy_mb_per_s and options.kv_offloading_size go together"
    ):
        made(0, copy_mb_per_s=None)
    with pytest.raises(ConfigError, match="target t: a measured engine with host memory needs kv_bytes"):
        parse(raw(engine=made(0).as_given()["engine"], targets=[TARGET]))


@pytest.mark.parametrize(
    ("options", "there"),
    [
        ({}, False),
        ({"kv_offloading_size": 4.0}, True),
        ({"kv_offloading_size": 4.0, "kv_offloading_backend": "lmcache"}, False),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector", "kv_role": "kv_both"}}, False),
        ({"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}}, True),
    ],
)
def test_only_vllms_own_offloading_is_host_memory_to_us(options: dict[str, Any], there: bool) -> None:
    assert VllmConfig(options=options).host_tier is there
