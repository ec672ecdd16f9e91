from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.simulator.core import Process, Simulation
from cluster.simulator.server import BLOCK_TOKENS, CacheTooSmall, Server
from policies.batching import batching
from tests.cluster.simulator.timers import Linear


def server(simulation: Simulation, timer: Linear, **settings: Any) -> Server:
    policy = settings.pop("batching", "chunked")
    size = {"size": settings.pop("size")} if "size" in settings else {}
    return Server(simulation, "s", timer, batching.create(policy, **size), **settings)


def works(simulation: Simulation, host: Server, works: list[tuple[int, int]], ends: list[float]) -> Process:
    session = host.open()
    for tokens, window in works:
        yield host.work(session, tokens, window)
        ends.append(simulation.now)
    host.close(session)


def test_a_step_takes_what_the_timer_says() -> None:
    simulation, timer, ends = Simulation(), Linear(0.02, 0.001), []
    host = server(simulation, timer)
    simulation.spawn(works(simulation, host, [(50, 1), (1, 1), (5, 5)], ends))
    simulation.run()
    assert ends == pytest.approx([0.07, 0.091, 0.116])
    assert timer.asked == [(50, 0, 0, ((50, 0),)), (1, 1, 50, ()), (5, 1, 51, ())]
    assert host.open_sessions == 0


def test_what_arrives_during_a_step_shares_the_next_one() -> None:
    simulation, timer, ends = Simulation(), Linear(0.02, 0.001), []
    host = server(simulation, timer)
    for start_s in (0.0, 0.01, 0.015):
        simulation.at(start_s, lambda _: simulation.spawn(works(simulation, host, [(5, 5)], ends)))
    simulation.run()
    assert host.steps == 2
    assert ends == pytest.approx([0.025, 0.055, 0.055])


@pytest.mark.parametrize(
    ("settings", "queue"),
    [({"max_sessions": 8}, 0.75), ({"max_sessions": 4}, 1.5), ({"batching": "lab", "size": 2}, 3.0)],
)
def test_the_queue_is_in_relation_to_what_a_step_takes(settings: dict[str, Any], queue: float) -> None:
    host = server(Simulation(), Linear(0.02, 0.001), **settings)
    for _ in range(6):
        host.open()
    assert host.queue == queue


def test_the_first_token_is_apart_only_on_an_idle_server() -> None:
    simulation, timer, ends = Simulation(), Linear(0.02, 0.001), []
    host = server(simulation, timer, first_apart=True, call_s=0.003)

    def begin() -> Process:
        session = host.open()
        yield from host.first_token(session, 10)
        ends.append(simulation.now)
        host.close(session)

    for start_s in (0.0, 0.01):  # the second comes while the first one's prompt is taken in
        simulation.at(start_s, lambda _: simulation.spawn(begin()))
    simulation.run()
    assert [step[0] for step in timer.asked] == [9, 1 + 10]
    assert ends == pytest.approx([0.029 + 0.031 + 0.003] * 2)


def test_a_fused_window_waits_for_its_drafter() -> None:
    simulation, draft = Simulation(), Linear(0.004, 0.0)
    host = server(simulation, Linear(0.02, 0.0), draft_timer=draft)

    def fused() -> Process:
        session = host.open()
        yield host.work(session, 5, 5, drafting=4)
        host.close(session)

    simulation.spawn(fused())
    simulation.run()
    assert simulation.now == pytest.approx(0.02 + 4 * 0.004)


def test_no_more_sessions_than_places() -> None:
    simulation, timer, ends = Simulation(), Linear(0.02, 0.0), []
    host = server(simulation, timer, max_sessions=2)
    for _ in range(3):
        simulation.spawn(works(simulation, host, [(4, 1), (1, 1)], ends))
    simulation.run()
    assert len(ends) == 6
    # the first begins alone, the second joins it, the third comes in when the first has gone
    assert max(sequences + len(prefills) for _, sequences, _, prefills in timer.asked) == 2


def test_padding_costs_the_longest_times_the_number() -> None:
    simulation, timer = Simulation(), Linear()
    host = server(simulation, timer, padded=True)
    ends: list[float] = []
    simulation.spawn(works(simulation, host, [(3, 1)], ends))  # the other two wait, and go on together
    simulation.spawn(works(simulation, host, [(64, 1), (5, 5)], ends))
    simulation.spawn(works(simulation, host, [(16, 1), (2, 2)], ends))
    simulation.run()
    assert (10, 2, 128, ()) in timer.asked


def test_a_full_cache_makes_the_youngest_give_way_and_loses_nothing() -> None:
    simulation, timer, ends = Simulation(), Linear(), []
    host = server(simulation, timer, kv_tokens=10 * BLOCK_TOKENS)
    for _ in range(3):
        simulation.spawn(works(simulation, host, [(4 * BLOCK_TOKENS - 8, 1)] + [(1, 1)] * 30, ends))
    simulation.run()
    assert len(ends) == 3 * 31
    assert host.preempted > 0


def test_a_session_larger_than_the_cache_is_an_error() -> None:
    simulation = Simulation()
    host = server(simulation, Linear(), kv_tokens=BLOCK_TOKENS)
    with pytest.raises(CacheTooSmall, match="KV cache"):
        simulation.spawn(works(simulation, host, [(3 * BLOCK_TOKENS, 1)], []))


@settings(max_examples=60)
@example(  # the youngest is granted all, and gives way to one that was granted nothing
    batching_name="continuous",
    budget=4,
    places=3,
    blocks=8,
    sessions=[(0.0, 1, [1, 1]), (0.125, 52, []), (0.0, 49, [1])],
)
@given(
    batching_name=st.sampled_from(sorted(batching)),
    budget=st.integers(4, 64),
    places=st.integers(1, 6),
    blocks=st.one_of(st.none(), st.integers(8, 20)),
    sessions=st.lists(
        st.tuples(st.floats(0, 0.2), st.integers(1, 60), st.lists(st.integers(1, 4), max_size=6)),
        min_size=1,
        max_size=8,
    ),
)
def test_all_work_is_done_once_whatever_the_policy(
    batching_name: str,
    budget: int,
    places: int,
    blocks: int | None,
    sessions: list[tuple[float, int, list[int]]],
) -> None:
    simulation, timer, ends = Simulation(), Linear(), []
    host = server(
        simulation,
        timer,
        batching=batching_name,
        token_budget=budget,
        max_sessions=places,
        kv_tokens=None if blocks is None else blocks * BLOCK_TOKENS,
    )
    for start_s, prompt, windows in sessions:
        plan = [(prompt, 1), *((w, w) for w in windows)]
        simulation.at(start_s, lambda _, plan=plan: simulation.spawn(works(simulation, host, plan, ends)))
    simulation.run()
    wanted = sum(prompt + sum(windows) for _, prompt, windows in sessions)
    assert len(ends) == sum(1 + len(windows) for _, _, windows in sessions)
    assert host.tokens >= wanted if host.preempted else host.tokens == wanted
    assert host.open_sessions == 0
    assert not host._admitted
    assert host._free_blocks == blocks
