"""All systems get the same questions at the same times; rivals get what their money buys."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from statistics import fmean

import pytest

from tandem.benchmarks.pice import live
from tandem.benchmarks.pice.embedded import TEXT
from tandem.benchmarks.pice.live import (
    DEVICE_USD,
    DEVICES,
    EDGE,
    GPU_USD,
    GPUS,
    LOAD,
    MORE_PLACES,
    PLACES,
    SYSTEMS,
    Edge,
    Front,
    Load,
    Served,
    System,
    choose_drafting,
    compare,
    figures,
    serve,
)
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.training.family.encyclopedia.items import LONG_KINDS
from tandem.training.family.prompts import heldout


def test_more_places_cost_no_less_than_the_devices() -> None:
    place_usd = GPUS * GPU_USD / PLACES
    assert (MORE_PLACES - 1) * place_usd < DEVICES * DEVICE_USD <= MORE_PLACES * place_usd
    assert SYSTEMS["more places"] == System("cloud", places=PLACES + MORE_PLACES)


def test_everything_is_as_much_quicker() -> None:
    plain, quick = Edge(quicker=1.0), Edge(quicker=4.0)
    profile = load_profile(plain.profile)
    assert plain.speed == profile
    assert quick.speed.decode_s(44) == pytest.approx(profile.decode_s(44) / 4)
    assert quick.speed.prefill_s(100) == pytest.approx(profile.prefill_s(100) / 4)
    assert (quick.step_s, quick.rtt_s) == pytest.approx((plain.step_s / 4, plain.rtt_s / 4))
    assert Edge("native").speed == load_profile("native")


def test_at_its_limit_the_cloud_does_what_the_papers_does() -> None:
    assert 60 * PLACES / (500 * Edge(quicker=1.0).step_s) == pytest.approx(16.33)


def test_more_is_asked_than_the_cloud_can_answer() -> None:
    load = Load.draw(400, LOAD, EDGE.step_s, seed=1)
    assert {item.kind for item in load.items} == set(LONG_KINDS)
    assert load.at_s == sorted(load.at_s)
    tokens = fmean(len(TEXT.encode(f" {item.answer}")) for item in load.items)
    answered_per_s = PLACES / (tokens * EDGE.step_s)
    assert 400 / load.at_s[-1] == pytest.approx(LOAD * answered_per_s, rel=0.15)
    assert load == Load.draw(400, LOAD, EDGE.step_s, seed=1)
    assert load.items != Load.draw(400, LOAD, EDGE.step_s, seed=2).items


class Recorder:
    """In an executor's place; whatever it is given ends when `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = Counter[tuple[str | None, object]]()
        self.most = 0

    async def run(self, job: Job) -> AsyncIterator[Delta]:
        self.running[job.mode, job.device] += 1
        self.most = max(self.most, self.running.total())
        await self.go.wait()
        self.running[job.mode, job.device] -= 1
        yield Delta([TEXT.eos], [], "stop", stats=JobStats())


async def test_devices_draft_for_so_many_and_the_cloud_answers_the_others_alone() -> None:
    recorder = Recorder()
    system, edge = System("speculative", places=6, drafting=2, window=3), Edge(count=2)
    front = Front(recorder, system, edge)  # type: ignore[arg-type]
    answers = [asyncio.create_task(front.answer(item, 0.0)) for item in heldout(9)]
    while recorder.running.total() < 6:  # noqa: ASYNC110 (it has no such event)
        await asyncio.sleep(0)
    assert recorder.running == {
        ("speculative", "device-0"): 2,
        ("speculative", "device-1"): 2,
        ("cloud", None): 2,
    }
    recorder.go.set()
    await asyncio.gather(*answers)
    assert recorder.most == 6, "no more than there are places"


def served(per_minute: float, latency_s: float, facts: float = 1.0, late: float = 0.0) -> Served:
    return Served([latency_s], [1.0], per_minute, facts, 100.0, 0.5, late)


def test_figures_are_medians_of_each_rounds_ratios() -> None:
    found = figures(
        {
            "cloud-only": [served(10, 8), served(20, 4), served(10, 8)],
            "PICE": [served(20, 4, 0.9), served(30, 2, 0.8), served(15, 6, 0.9, late=0.2)],
            "more places": [served(12, 6)] * 3,
            "speculation": [served(14, 5)] * 3,
        }
    )
    assert found["throughput_x"] == 1.5
    assert found["latency_cut"] == 0.5
    assert found["more_places_throughput_x"] == 1.2
    assert found["speculation_latency_cut"] == pytest.approx(0.375)
    assert found["facts_kept"] == 0.9
    assert found["late_steps"] == 0.2


async def test_speculation_is_at_its_best_of_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def given(system: System, edge: Edge, load: Load) -> Served:
        return served(10 * system.drafting - system.drafting**2 + system.window, 1.0)

    monkeypatch.setattr(live, "serve", given)
    load = Load.draw(1, LOAD, EDGE.step_s, seed=1)
    chosen = await choose_drafting(EDGE, load, [(1, 9), (5, 2), (5, 3), (9, 1)])
    assert chosen == System("speculative", drafting=5, window=3)


async def test_rounds_alternate_and_give_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[System, Load]]()

    async def given(system: System, edge: Edge, load: Load) -> Served:
        asked.append((system, load))
        return served(1.0, 1.0)

    monkeypatch.setattr(live, "serve", given)
    found = await compare(SYSTEMS, EDGE, requests=3, load=LOAD, rounds=4)
    assert {name: len(runs) for name, runs in found.items()} == dict.fromkeys(SYSTEMS, 4)
    rounds = [asked[4 * n : 4 * n + 4] for n in range(4)]
    assert [each[0][0] for each in rounds] == list(SYSTEMS.values())
    for each in rounds:
        assert {system for system, _ in each} == set(SYSTEMS.values())
        assert all(load == each[0][1] for _, load in each)
    assert len({load.at_s[0] for _, load in asked}) == 4


QUICK = Edge(
    settings=SketchSettings(sketching={"name": "always", "parameters": {"shortest": 20}}, wait_s=60.0),
    quicker=20.0,
)


@pytest.mark.slow
async def test_every_system_answers_over_the_wire_and_pice_with_fewer_of_the_targets_tokens() -> None:
    load = replace(Load.draw(3, 100.0, QUICK.step_s, seed=1), items=heldout(3, ["overview"], seed=1))
    drafting = System("speculative", drafting=1, window=4)
    cloud, pice, speculation = [
        await serve(system, QUICK, load) for system in (SYSTEMS["cloud-only"], SYSTEMS["PICE"], drafting)
    ]
    assert pice.sketched == 1.0
    assert pice.llm_tokens < 0.6 * cloud.llm_tokens
    assert pice.facts > 0.5
    assert speculation.facts == cloud.facts
    for each in (cloud, pice, speculation):
        assert len(each.latency_s) == len(each.first_s) == 3
        assert all(first <= last for first, last in zip(each.first_s, each.latency_s, strict=True))
        assert each.per_minute <= 60 * 3 / (max(load.at_s) - load.at_s[0])
        assert min(cloud.latency_s) >= 60 * QUICK.step_s, "an overview has at least as many tokens"
