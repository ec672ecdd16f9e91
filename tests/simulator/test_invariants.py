"""Promises of the simulator (numbered as in `simulator`; for the fourth, see `test_foresight`)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.devices.device import Device
from tandem.cluster.wire import frames
from tandem.cluster.wire.frames import pack_ids
from tandem.deployments.modes.sketch.mode import Sketched
from tandem.deployments.modes.split import Splitting
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import EngineStats
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.engines.script import EOS, TOKEN
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tandem.simulator.world.network import LinkedEngine, frame_bytes
from tandem.simulator.world.world import World
from tests.simulator.configurations import DEVICE, ENDS, MIDDLE, TARGET, config, split
from tests.simulator.worlds import requests, run, worlds

REFUSALS = {"overloaded", "context_length_exceeded", "prompt_left_device"}
OF_MODE = {
    "cloud": {Origin.CLOUD},
    "device": {Origin.DEVICE},
    "speculative": {Origin.CLOUD, Origin.DRAFT, Origin.CORRECTED, Origin.BONUS},
    "race": {Origin.CLOUD, Origin.DEVICE},
    "split": {Origin.CLOUD, Origin.DRAFT, Origin.CORRECTED, Origin.BONUS},
    "sketch": {Origin.CLOUD, Origin.DRAFT, Origin.CORRECTED, Origin.BONUS, Origin.EXPANSION},
}


@given(asked=requests(), world=worlds())
def test_1_every_request_ends_once_with_the_tokens_of_its_trace_and_leaves_nothing_behind(
    asked: list[Request], world: dict[str, Any]
) -> None:
    after, answers = run(config(**world), asked)
    assert [answer.request for answer in answers] == asked
    for answer, request in zip(answers, asked, strict=True):
        assert answer.finished != (answer.failure is not None)
        assert answer.failure is None or answer.failure in REFUSALS
        whole = [*range(TOKEN, TOKEN + request.output_tokens - 1), EOS]
        most = min(request.output_tokens, request.max_tokens or request.output_tokens)
        assert answer.ids == whole[: most if answer.finished else answer.tokens]
        assert answer.tokens == len(answer.ids or ()) == sum(answer.origins.values())
        if answer.finished:
            assert answer.finish == ("stop" if request.output_tokens <= most else "length")
            assert set(answer.origins) <= set().union(
                *(OF_MODE[mode] for mode in answer.stats.figures), {Origin.CLOUD}
            )
        rounds = answer.rounds
        halves = Splitting() if answer.stats is None else Splitting.of(answer.stats)
        sketches = Sketched() if answer.stats is None else Sketched.of(answer.stats)
        said = answer.origins.get(Origin.DRAFT, 0)
        assert (
            rounds.accepted + halves.accepted <= said <= rounds.accepted + halves.accepted + sketches.accepted
        )
        assert sketches.drafted >= sketches.accepted
        assert halves.drafted >= halves.accepted
        assert rounds.drafted >= rounds.accepted
        assert answer.stats is None or answer.stats.by_origin in ({}, answer.origins)
    _nothing_is_left(after)


def _nothing_is_left(world: World) -> None:
    for server in (*world.servers, *world.drafters):
        assert server.open_sessions == 0
        if not server.alive:
            continue  # what it had went with its process
        memory = server.core._core.memory
        assert not memory.sequences
        assert not memory.waiting
        assert not memory.busy
        assert memory.pool.available == memory.pool.num_blocks
        assert not any(memory.pool._references)
        assert memory.tier is None or memory.tier.free == memory.tier.settings.blocks
    for made in world.devices._made.values():
        assert made.device.sessions == 0
        assert not made.device.processor._running
        assert not made.path._sessions
        assert not made.uplink._sessions
        if made.outer is not None:
            assert made.outer.sessions == 0
            assert not made.outer._core.memory.sequences
    assert not world.routing.modes["race"].races  # type: ignore[attr-defined]  # of the mode's part
    assert not asyncio.all_tasks(world.loop)


@given(asked=requests(), world=worlds())
def test_2_nothing_comes_before_its_cause(asked: list[Request], world: dict[str, Any]) -> None:
    _, answers = run(config(**world), asked)
    link = world["devices"][0]["link"]
    one_way_s = (link["rtt_ms"] / 2 - link["jitter_ms"]) / 1e3  # at least
    at_device = world["reader"] == "device"
    step_s, decode_s = TARGET["measured"]["base_s"], 1 / 80
    for answer, request in zip(answers, asked, strict=True):
        assert answer.arrival_s == request.arrival_s
        assert answer.history is not None
        if not answer.tokens:
            continue
        cloud_s = step_s + (2 * one_way_s if at_device else 0.0)
        device_s = request.prompt_tokens / 400 + decode_s + (0.0 if at_device else 2 * one_way_s)
        expanded_s = cloud_s + decode_s + 2 * one_way_s
        first = {Origin.CLOUD: cloud_s, Origin.DEVICE: device_s, Origin.EXPANSION: expanded_s}
        least_s = min(first[origin] for origin in OF_MODE[answer.mode] & first.keys())
        assert answer.first_s >= answer.arrival_s + least_s - 1e-9
        assert answer.first_s == answer.history[0].time_s
        assert answer.last_s == answer.history[-1].time_s
        assert [t for r in answer.history for t in [r.time_s] * r.tokens] == list(answer.times_s or ())
        for before, after in pairwise(answer.history):
            assert after.time_s >= before.time_s  # in order, also where jitter would have it otherwise
            if (at_device and answer.mode != "device") or world["engine"]["latency"] is not None:
                continue  # frames that were on the link together, or waited together, may come at once
            if len(answer.stats.figures) == 1 and answer.mode in ("cloud", "speculative"):
                assert after.time_s - before.time_s >= step_s - 1e-9  # a step each
            elif len(answer.stats.figures) == 1 and answer.mode == "device" and at_device:
                assert after.time_s - before.time_s >= decode_s - 1e-9


REPEATED: dict[str, dict[str, Any]] = {
    **{mode: {"mode": mode} for mode in OF_MODE if mode != "split"},
    **{
        f"{mode}, read in the cloud": {"mode": mode, "reader": "cloud"} for mode in OF_MODE if mode != "split"
    },
    "split": split(drafting={"name": "expected_gain"}),
    "mixed": {
        "mode": None,
        "workload": {
            "count": 60,
            "prompt": {"mean": 40, "cv": 0.5},
            "output": {"mean": 30, "cv": 0.5},
            "arrival": {"kind": "poisson", "rate_per_s": 30.0},
            "acceptance": {"kind": "alpha", "alpha": 0.7},
            "modes": [[1 / len(OF_MODE), mode] for mode in OF_MODE],
            "readers": [[0.5, 5.0], [0.5, 20.0]],
        },
        "window": {"name": "awc"},
        "router": {"routing": {"name": "random"}},
        "racing": {"dispatch": {"name": "disco"}, "migration": {"name": "prepared"}},
        "accounts": {"exchange_rate": 0.0},
        "engine": {
            "scheduling": {"name": "buffer_aware"},
            "batching": {"name": "buffered"},
            "kv_blocks": 25,
            "max_sessions": 6,
            "host_memory": {"blocks": 20, "copy_mb_per_s": 5.0},
            "latency": {"median_s": 0.1, "sigma": 1.0},
        },
        "targets": [
            {**TARGET, "count": 2, "kv_bytes": 1000, "measured_draft": {"base_s": 0.004}},
            {**MIDDLE, "kv_bytes": 1000},
        ],
        "devices": [
            {**DEVICE, "count": 5, "sessions": 2, "ends": ENDS, "link": {"rtt_ms": 20, "jitter_ms": 9}}
        ],
    },
}


@pytest.mark.slow
def test_3_the_same_configuration_gives_the_same_bytes_in_any_process() -> None:
    here = {name: simulate(config(**changes)).json() for name, changes in REPEATED.items()}
    code = (
        "import sys; from tandem.simulator.runs.run import simulate;"
        "from tests.simulator.configurations import config;"
        "from tests.simulator.test_invariants import REPEATED;"
        "sys.stdout.buffer.write(b''.join(simulate(config(**c)).json() for c in REPEATED.values()))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for seed in ("1", "77")
    ]
    for process in running:
        there, _ = process.communicate()
        assert process.returncode == 0
        assert there == b"".join(here.values())
    assert simulate(config(seed=4)).json() != here["speculative"]  # the seed matters


@given(asked=requests(), world=worlds())
def test_3_another_run_in_the_same_process_as_well(asked: list[Request], world: dict[str, Any]) -> None:
    made = config(**world)
    assert simulate(made, requests=asked).json() == simulate(made, requests=asked).json()


def _bytes(frames: int, tokens: int) -> int:
    return 24 * frames + 3 * tokens


@given(
    asked=requests(),
    mode=st.sampled_from(["cloud", "device", "speculative", "race"]),
    reader=st.sampled_from(["device", "cloud"]),
    jitter_ms=st.sampled_from([0, 5]),
)
def test_5_links_carry_what_the_tokens_imply(
    asked: list[Request], mode: str, reader: str, jitter_ms: int
) -> None:
    """A frame costs 24 bytes, and 3 a token. Devices have room for all requests; races are the server's, to the end."""
    asked = [replace(request, mode=mode, max_tokens=None) for request in asked]
    devices = [{**DEVICE, "sessions": 10, "link": {"rtt_ms": 10, "jitter_ms": jitter_ms}}]
    races = {
        "racing": {"dispatch": {"name": "server"}, "migration": {"name": "never"}},
        "accounts": {"budget": 1.0},
    }
    questions: Counter[type] = Counter()  # those that are no longer of interest on their way get no answer
    with pytest.MonkeyPatch.context() as patch:
        for asks in (LinkedEngine, Device):
            patch.setattr(asks, "stats", _counted(asks, questions))
        world, answers = run(config(reader=reader, devices=devices, history=True, **races), asked)
    expected = 0
    for answer in answers:
        assert answer.finished
        assert answer.mode == mode
        prompt, tokens, history = answer.prompt_tokens, answer.tokens, answer.history or []
        forwarded = reader == "device" and mode in ("cloud", "speculative")
        if forwarded:  # the prompt, and every delivery
            expected += _bytes(1 + len(history), prompt + tokens)
        session = _bytes(2, prompt) + _bytes(2, 0)  # opened and closed, and an answer to either
        streamed = _bytes(1 + tokens, tokens)  # asked for, and a frame each
        if (mode == "device" and reader == "cloud") or (mode == "race" and reader == "device"):
            expected += session + streamed
        if mode == "speculative":
            drafted = [i for i, r in enumerate(history) if r.window]
            told = sum(r.tokens for r in history[: drafted[-1]]) if drafted else 0
            expected += session + _bytes(2 * len(drafted), told + sum(r.window for r in history))
    assert questions[LinkedEngine] >= questions[Device]
    assert world.devices.sent_bytes == expected + _bytes(questions.total(), 0)


def _counted(engine: type[Any], calls: Counter[type]) -> Callable[[Any], Awaitable[EngineStats]]:
    stats = engine.stats

    async def counted(self: Any) -> EngineStats:
        calls[engine] += 1
        asked: EngineStats = await stats(self)
        return asked

    return counted


@pytest.mark.parametrize("tokens", [0, 1, 4, 64, 1000])
def test_5_a_frame_is_about_as_large_as_the_wires(tokens: int) -> None:
    """Use a vocabulary of more than 65,536 words."""
    ids = pack_ids([100_000 + i for i in range(tokens)])
    session, seq, engine = 2**40, 5_000, "phone-17"
    for frame in (
        frames.Draft(session, seq, engine, 500, ids, 4),
        frames.Verify(session, seq, engine, ids),
        frames.Extend(session, seq, engine, 500, ids),
        frames.Drafts(session, seq, ids),
        frames.Verdict(session, seq, 4, ids),
        frames.Tokens(session, seq, ids),
    ):
        assert len(frames.encode(frame)) == pytest.approx(frame_bytes(tokens), abs=16)


def test_rejected_drafts_are_made_up() -> None:
    """The authors' own simulator counted a rejected token as delivered."""
    nothing_accepted = Request(0.0, 10, 20, bytes(20))
    (answer,) = simulate(config(), requests=[nothing_accepted], window=lambda: StaticWindow(4)).answers
    assert (answer.tokens, answer.rounds.accepted, answer.rounds.rounds) == (20, 0, 19)
    everything = replace(nothing_accepted, acceptance=bytes([1] * 20))
    (answer,) = simulate(config(), requests=[everything], window=lambda: StaticWindow(4)).answers
    assert (answer.tokens, answer.rounds.accepted, answer.rounds.rounds) == (
        20,
        16,
        4,
    )  # 1, then 5, 5, 5 and 4


@pytest.mark.parametrize("users", [1, 3, None])
def test_so_many_users_wait_for_their_answers_at_once(users: int | None) -> None:
    workload = {
        "count": 12,
        "prompt": {"mean": 40},
        "output": {"mean": 30},
        "arrival": {"kind": "closed", "users": users},
        "acceptance": {"kind": "alpha", "alpha": 0.7},
    }
    answers = simulate(config(workload=workload)).answers
    changes = sorted(
        [(answer.arrival_s, 1) for answer in answers] + [(answer.last_s, -1) for answer in answers]
    )
    under_way = [0]
    for _, change in changes:
        under_way.append(under_way[-1] + change)
    assert len(answers) == 12
    assert max(under_way) == (users or 5)  # five devices
