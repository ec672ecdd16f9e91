"""Options of simulated requests."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Clients, simulate
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World
from tests.simulator.configurations import DEVICE, TARGET, config


def test_one_run_may_mix_modes() -> None:
    requests = [Request(i * 1.0, 20, 10, bytes(10), mode=("cloud", "device")[i % 2]) for i in range(4)]
    summary = simulate(config(mode=None), requests=requests).summary()
    assert summary["tokens_by_origin"] == {"cloud": 20, "device": 20}


def test_without_a_mode_the_collaboration_policy_chooses() -> None:
    """A request of a device is answered speculatively, one without a device in the cloud."""
    request = Request(0.0, 20, 10, bytes([1] * 10))
    with_devices = simulate(config(mode=None), requests=[request]).summary()
    assert with_devices["modes"]["speculative"]["drafted"] > 0
    without = simulate(config(mode=None, devices=[]), requests=[request]).summary()
    assert without["tokens_by_origin"] == {"cloud": 10}


def test_a_client_gets_no_more_than_it_allows() -> None:
    requests = [Request(0.0, 20, 10, bytes(10), max_tokens=4), Request(0.0, 20, 10, bytes(10))]
    summary = simulate(config(mode="cloud"), requests=requests).summary()
    assert summary["tokens_by_origin"] == {"cloud": 14}


def test_a_run_ends_though_its_last_answers_end_in_the_same_moment() -> None:
    requests = [Request(0.0, 20, 10, bytes(10)) for _ in range(3)]
    summary = simulate(config(mode="cloud", targets=[TARGET], devices=[]), requests=requests).summary()
    assert summary["finished"] == 3


def test_a_run_warns_once_of_a_policy_that_needs_host_memory(caplog: pytest.LogCaptureFixture) -> None:
    policy = {"scheduling": {"name": "buffer_aware"}}
    for engine, warnings in ((policy, 1), (policy | {"host_memory": {"blocks": 9, "copy_mb_per_s": 1.0}}, 0)):
        caplog.clear()
        targets = [{**TARGET, "count": 2, "kv_bytes": 8}]
        simulate(config(mode="cloud", engine=engine, targets=targets), requests=[Request(0.0, 20, 10)])
        assert sum("without a host tier" in line for line in caplog.messages) == warnings


@pytest.mark.parametrize(
    ("batch", "speed", "seconds"),
    [
        (1, DEVICE, 4 * (20 / 400 + 100 / 80)),
        (4, DEVICE, 4 * 20 / 400 + 100 / 80),
        (4, {"measured": {"base_s": 0.01, "token_s": 0.001}}, 4 * 0.03 + 100 * 0.014),
    ],
)
def test_a_device_decodes_a_batch_at_once(batch: int, speed: dict[str, object], seconds: float) -> None:
    devices = [{**speed, "sessions": 4, "batch": batch}]
    requests = [Request(0.0, 20, 100) for _ in range(4)]
    answers = simulate(config(mode="device", devices=devices), requests=requests).answers
    assert max(answer.last_s for answer in answers) == pytest.approx(seconds, rel=0.05)


def test_the_router_knows_how_fast_devices_are() -> None:
    record = World(config()).routing.assigner.devices["device-3"]
    assert record.prefill_token_s == pytest.approx(1 / 400)
    assert record.decode_token_s == pytest.approx(1 / 80)


def disturbed(fault: str, seconds: float) -> SimulatedAnswer:
    """An answer of the cloud to a reader at a device, whose link breaks in the middle."""
    devices = [{**DEVICE, "link": {"rtt_ms": 20}}]
    world = World(config(mode="cloud", targets=[TARGET], devices=devices, history=True))
    clients = Clients(world, lambda _: None)
    path = world.devices[0].uplink
    world.loop.call_at(1.0, getattr(path, fault))
    world.loop.call_at(1.0 + seconds, path.heal)
    world.loop.run(clients.run([Request(0.0, 20, 200, max_tokens=200)]))
    (answer,) = clients.answers
    return answer


def test_answers_wait_for_a_link_that_stalls() -> None:
    answer = disturbed("stall", 4.0)
    assert answer.finish == "stop"
    assert answer.times_s is not None
    assert not [time_s for time_s in answer.times_s if 1.1 < time_s < 5.0]


def test_answers_do_not_cross_a_link_that_is_cut() -> None:
    answer = disturbed("cut", 4.0)
    assert answer.failure == "unreachable"
    assert 0 < answer.tokens < 200
    assert answer.last_s <= 1.0 + 0.01 + 1e-9
    assert answer.ended_s == pytest.approx(1.0, abs=0.1)


@pytest.fixture
def nothing_collected() -> Iterator[None]:
    """But by those who ask for it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("nothing_collected")
def test_a_run_clears_its_world_away_and_looks_at_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many in a row would pile up; and each would cost what a look at a large process's heap does."""
    worlds: list[weakref.ref[World]] = []
    made = World.__init__

    def init(self: World, *args: object) -> None:
        worlds.append(weakref.ref(self))
        made(self, *args)

    class Ring:
        """Garbage that only a collection finds."""

    monkeypatch.setattr(World, "__init__", init)
    ring = Ring()
    ring.ring = ring  # type: ignore[attr-defined]
    before = weakref.ref(ring)
    del ring
    result = simulate(config())
    assert [world() for world in worlds] == [None]
    assert before() is not None
    assert result.servers[0].steps
