"""Groups of servers that grow and shrink in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.simulator.config.config import parse
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.runs.run import Clients, Result, simulate
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World
from tests.simulator import worlds
from tests.simulator.configurations import TARGET, raw

SCALED: dict[str, Any] = {
    "min_replicas": 1,
    "max_replicas": 4,
    "downscale_delay_s": 5.0,
    "to_zero_delay_s": 5.0,
    "policy": {"name": "ongoing_requests", "parameters": {"target": 4, "look_back_s": 2}},
}


def run(
    requests: list[Request], mode: str = "cloud", target: dict[str, Any] | None = None, **scaled: Any
) -> Result:
    """Simulate these requests with one such group."""
    group = {**TARGET, "start_s": 3.0, "autoscaling": SCALED | scaled, **(target or {})}
    return simulate(parse(raw(mode=mode, devices=[], targets=[group])), requests=requests)


def burst(at_s: float, count: int, tokens: int = 200) -> list[Request]:
    """Return `count` requests at once."""
    return [Request(at_s, 40, tokens, bytes([1] * tokens)) for _ in range(count)]


def test_a_pool_grows_for_those_who_come() -> None:
    """The second burst finds the servers that the first one called for, after the time that they take."""
    result = run([*burst(0.0, 16), *burst(6.0, 16)])
    first, second = result.answers[:16], result.answers[16:]
    assert {answer.server for answer in first} == {0}
    assert {answer.server for answer in second} == {0, 1, 2, 3}
    assert not result.summary()["failed"]


def test_what_only_waits_is_handed_to_a_new_server() -> None:
    """Four places: twelve of a burst wait for one, and need not wait for it where they came to."""
    result = run(burst(0.0, 16, tokens=600), target={"engine": {"max_sessions": 4}})
    assert {answer.server for answer in result.answers} == {0, 1, 2, 3}
    assert all(answer.tokens == 600 for answer in result.answers)
    assert all(answer.stats is not None and not answer.stats.replans for answer in result.answers)
    fixed = run(burst(0.0, 16, tokens=600), target={"engine": {"max_sessions": 4}}, max_replicas=1)
    begun_s = sorted(answer.ttft_s for answer in result.answers)
    assert begun_s[3] < 1.0 < 3.0 < begun_s[4], "those who had a place keep it, and servers take 3 s to start"
    assert begun_s[-1] < 6.0 < fixed.answers[-1].ttft_s


def test_handed_over_sessions_keep_their_turn() -> None:
    """Requests that wait at a full server go before later ones at a server with room."""
    result = run(
        [*burst(0.0, 12, tokens=600), *burst(4.2, 8, tokens=600)], target={"engine": {"max_sessions": 4}}
    )
    begun_s = [answer.first_s for answer in result.answers]
    assert max(begun_s[:12]) <= min(begun_s[12:]) + 1e-9


def test_servers_are_paid_for_from_when_they_are_asked_for() -> None:
    """One for the whole time; three more from second 1, which takes 16 requests for 4 times the target, to the end of
    the delay and of the drain."""
    result = run([*burst(0.0, 16), *burst(40.0, 1)])
    fixed = run([*burst(0.0, 16), *burst(40.0, 1)], max_replicas=1)
    assert fixed.replica_s == pytest.approx(fixed.summary()["span_s"], rel=0.01)
    assert 3 * 5.0 < result.replica_s - fixed.replica_s < 3 * 30.0


def test_what_goes_hands_its_answers_over() -> None:
    """An answer that takes longer than a drain goes on elsewhere, whole."""
    long = burst(5.0, 8, tokens=2000)
    result = run([*burst(0.0, 16, tokens=60), *long], target={"drain_s": 2.0})
    moved = [answer for answer in result.answers if answer.stats is not None and answer.stats.replans]
    assert moved, "somebody had to move"
    assert not result.summary()["failed"]
    assert all(answer.tokens == 2000 for answer in result.answers[16:])


def test_a_pool_may_be_empty() -> None:
    """Between two bursts far apart there is nothing, and nothing to pay; whoever comes waits for a first server."""
    result = run([*burst(0.0, 4), *burst(1000.0, 4)], min_replicas=0, target={"count": 1})
    assert not result.summary()["failed"]
    assert result.replica_s < 100.0
    waited = [answer.ttft_s for answer in result.answers[4:]]
    assert min(waited) > 3.0, "it takes 3 s to start"


def test_one_for_each_other_kind_stays() -> None:
    """Fixed groups beside it are as large as they are."""
    groups = [{**TARGET, "autoscaling": SCALED}, {**TARGET, "count": 2}]
    result = simulate(parse(raw(mode="cloud", devices=[], targets=groups)), requests=burst(0.0, 6))
    assert result.replica_s == pytest.approx(3 * result.summary()["span_s"], rel=0.05)


def test_drafters_come_and_go_with_their_servers() -> None:
    group = {**TARGET, "start_s": 3.0, "autoscaling": SCALED, "measured_draft": {"base_s": 0.001}}
    config = parse(raw(mode="speculative", devices=[], targets=[group]))
    world, answers = worlds.run(config, [*burst(0.0, 16), *burst(6.0, 16)])
    assert all(answer.finished for answer in answers)
    assert len(world.servers) == len(world.drafters) == 4
    assert [drafter.up for drafter in world.drafters] == [server.up for server in world.servers]
    assert [server.up for server in world.servers] == [True, False, False, False]


async def _die(world: World, at_s: float, count: int) -> None:
    await asyncio.sleep(at_s)
    for server in [server for server in world.servers if server.up][:count]:
        await server.kill()
    world.refresh()


def test_others_come_in_place_of_those_that_die() -> None:
    group = {**TARGET, "start_s": 3.0, "autoscaling": SCALED}
    config = parse(raw(mode="cloud", devices=[], targets=[group]))
    world = World(config)
    clients = Clients(world, lambda _: None)

    async def both() -> None:
        dying = asyncio.ensure_future(_die(world, 7.0, 3))
        await clients.run([*burst(0.0, 16), *burst(6.0, 16)])
        await dying

    world.loop.run(both())
    assert all(answer.finished for answer in clients.answers)
    assert len(world.servers) > 4
    assert sum(server.up for server in world.servers) == world.pools[0].target


def test_the_same_again() -> None:
    requests = [*burst(0.0, 16), *burst(6.0, 16), *burst(60.0, 2)]
    assert run(requests).json() == run(requests).json()


def test_a_policy_that_does_not_exist_is_no_policy() -> None:
    with pytest.raises(ConfigError, match="autoscaling"):
        parse(raw(targets=[{**TARGET, "autoscaling": {"max_replicas": 2, "policy": {"name": "wrong"}}}]))
