"""Anything that a configuration may hold, for hypothesis; and how to run it and look inside afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from tandem.deployments.modes import AT_FRONT_DOORS, MODES
from tandem.engine.split.hidden_states import KINDS
from tandem.policies.race.dispatch import dispatch
from tandem.policies.race.migration import migration
from tandem.policies.routing.replica import routing
from tandem.policies.scheduling import scheduling
from tandem.policies.scheduling.batching import batching
from tandem.policies.speculation.window import window
from tandem.policies.split.chunking import chunking
from tandem.policies.split.drafting import drafting
from tandem.policies.split.parallel_drafting import parallel_drafting
from tandem.simulator.config.config import Config
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World
from tests.simulator.configurations import DEVICE, ENDS, MIDDLE, TARGET

HOSTS = [
    {"blocks": 625, "copy_mb_per_s": 1000.0},
    {"blocks": 6, "copy_mb_per_s": 0.5, "write_through": False, "overlap": False},
]
SCALED = {
    "min_replicas": 0,
    "max_replicas": 3,
    "downscale_delay_s": 1.0,
    "to_zero_delay_s": 1.0,
    "policy": {"name": "ongoing_requests", "parameters": {"target": 2, "look_back_s": 1}},
}


def named(registry: Any) -> st.SearchStrategy[dict[str, str]]:
    """Any policy of a family."""
    return st.sampled_from([{"name": name} for name in registry])


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Up to ten, of up to 80 and 40 tokens, of all modes."""
    made, now = [], 0.0
    for _ in range(draw(st.integers(1, 10))):
        now += draw(st.floats(0, 0.5))
        length = draw(st.integers(1, 40))
        bits = bytes(draw(st.lists(st.integers(0, 1), min_size=length, max_size=length)))
        made.append(
            Request(
                now,
                draw(st.integers(1, 80)),
                length,
                bits,
                draw(st.none() | st.integers(0, 9)),
                draw(st.sampled_from([0.0, 5.0, 40.0])),
                draw(st.sampled_from([None, *MODES])),
                draw(st.none() | st.integers(1, 40)),
            )
        )
    return made


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Changes of `configurations.raw`: all policies, small KV caches, host memory, jitter, services' latencies."""
    rtt_ms = draw(st.sampled_from([0, 5, 80]))
    link: dict[str, Any] = {"rtt_ms": rtt_ms, "jitter_ms": rtt_ms * draw(st.sampled_from([0, 0.1, 0.5]))}
    if draw(st.booleans()):
        link |= {"up_mbit_per_s": 0.05, "down_mbit_per_s": 0.5}
    target = {
        **TARGET,
        "count": draw(st.integers(1, 3)),
        "kv_bytes": 1000,
        "padded": draw(st.booleans()),
        "measured_draft": draw(st.sampled_from([None, {"base_s": 0.004}])),
        "call_s": draw(st.sampled_from([0.0, 0.002])),
        "autoscaling": draw(st.sampled_from([None, SCALED])),
        "start_s": draw(st.sampled_from([0.0, 0.5])),
        "drain_s": draw(st.sampled_from([0.0, 2.0])),
    }
    middle = {**MIDDLE, "count": draw(st.integers(1, 2)), "kv_bytes": 1000}
    return {
        "mode": draw(st.sampled_from([None, *AT_FRONT_DOORS])),
        "reader": draw(st.sampled_from(["device", "cloud"])),
        "window": draw(named(window)),
        "router": {"routing": draw(named(routing))},
        "racing": {
            "dispatch": draw(named(dispatch)),
            "migration": draw(named(migration)),
        },
        "accounts": {
            "budget": draw(st.floats(0, 1)),
            "exchange_rate": draw(st.sampled_from([0.0, 1e-6, 1.0])),
        },
        "engine": {
            "batching": draw(named(batching)),
            "scheduling": draw(st.none() | named(scheduling)),
            "max_sessions": draw(st.integers(1, 8)),
            "max_waiting": draw(st.sampled_from([None, 2])),
            "token_budget": draw(st.integers(16, 256)),
            "kv_blocks": draw(st.sampled_from([None, 12, 25])),
            "host_memory": draw(st.sampled_from([None, *HOSTS])),
            "latency": draw(st.sampled_from([None, {"median_s": 0.3, "sigma": 1.0}])),
        },
        "split": {
            "chunking": draw(named(chunking)),
            "drafting": draw(named(drafting)),
            "parallel_drafting": draw(named(parallel_drafting)),
            "wire": draw(st.sampled_from(KINDS)),
            "drafter": draw(st.sampled_from(["adapter", "heads", "none"])),
            "hidden": 16,
        },
        "targets": [target, middle],
        "devices": [
            {
                **DEVICE,
                "count": draw(st.integers(1, 4)),
                "sessions": draw(st.integers(1, 3)),
                "ends": ENDS,
                "link": link,
            }
        ],
        "history": True,
    }


def run(config: Config, asked: Sequence[Request], windows: Any = None) -> tuple[World, list[SimulatedAnswer]]:
    """The world after all was answered, and until nothing was left to happen in it."""
    world = World(config, windows)
    ended: list[int] = []
    clients = Clients(world, ended.append)
    world.loop.run(clients.run(asked))
    assert ended == [1] * len(asked)
    world.loop.run(asyncio.sleep(3600))
    return world, clients.answers
