"""Baselines are judged at their own best chunk, and nobody always goes first."""

from __future__ import annotations

from tandem.benchmarks.tokenflow.live import (
    CHOOSING,
    KINDS,
    SETUPS,
    Kind,
    Outcome,
    Setup,
    choose_chunks,
    in_turn,
    requests,
)
from tandem.engine.base import EngineStats
from tandem.policies.reader.quality import Quality
from tandem.simulator.workload import Request


async def test_each_baseline_gets_the_chunk_of_the_highest_qos() -> None:
    best, asked = {"fcfs": 64, "andes": 32}, list[list[Request]]()

    async def serve(kind: Kind, setup: Setup, work: list[Request]) -> Outcome:
        asked.append(work)
        assert kind.chunk is not None
        qos = -float(abs(kind.chunk - best[kind.scheduling]))
        return Outcome(Quality(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, qos), EngineStats())

    chosen = await choose_chunks(KINDS, SETUPS[0], 100.0, (32, 64, 128), serve)
    assert {name: kind.chunk for name, kind in chosen.items()} == {
        "FCFS": None,
        "FCFS chunked": 64,
        "Andes-like": 32,
        "TokenFlow": None,
    }
    assert asked == [requests(SETUPS[0], 100.0, CHOOSING)] * 6
    asked.clear()
    only = await choose_chunks(KINDS, SETUPS[0], 100.0, (64,), serve)
    assert (only["Andes-like"].chunk, asked) == (64, [])


def test_another_one_is_first_in_every_round() -> None:
    orders = [in_turn(KINDS, turn) for turn in range(len(KINDS))]
    assert [order[0] for order in orders] == list(KINDS)
    assert all(set(order) == set(KINDS) for order in orders)
