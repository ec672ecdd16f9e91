"""The setting says of cloud-only what the paper says; figures are ratios of the same questions."""

from __future__ import annotations

from itertools import product

import pytest

from tandem.benchmarks.pice.table3 import (
    ANSWER,
    CLOUD,
    FIGURES,
    LLMS,
    PICE,
    PLACES,
    SYSTEMS,
    Cell,
    Outcome,
    System,
    columns,
    figures,
    run,
    setting,
)
from tests.effort import slow_after


@pytest.mark.parametrize("name", LLMS)
def test_a_full_cloud_answers_as_many_as_the_papers(name: str) -> None:
    llm = LLMS[name]
    for places in (PLACES, PLACES + 5):
        steps = llm.steps(places)
        full_s = steps["base_s"] + steps["sequence_s"] * places
        assert 60 * PLACES / (ANSWER * full_s) == pytest.approx(llm.per_minute)
        assert 1 / (steps["base_s"] + steps["sequence_s"]) == pytest.approx(llm.alone)


def test_as_overloaded_as_the_papers() -> None:
    assert LLMS["Llama3-70B"].arrivals == 30
    assert {round(llm.arrivals / llm.per_minute, 2) for llm in LLMS.values()} == {1.84}


@pytest.mark.parametrize("name", slow_after(1, ["Qwen2.5-72B", "Llama3-70B"]))
def test_the_cloud_alone_comes_near_to_the_papers_latency(name: str) -> None:
    latency_s = run(Cell(name, CLOUD, 80, seed=1))[1].latency_s
    assert latency_s == pytest.approx(LLMS[name].latency_s, rel=0.2)


@pytest.mark.slow
def test_a_large_model_gains_and_a_small_one_is_left_alone() -> None:
    large, alone = (run(Cell("Llama3-70B", system, 60, seed=2))[1] for system in (PICE, CLOUD))
    assert large.sketched > 0.4
    assert large.per_minute > 1.2 * alone.per_minute
    assert large.latency_s < 0.7 * alone.latency_s
    small, alone = (run(Cell("Llama3-8B", system, 60, seed=2))[1] for system in (PICE, CLOUD))
    assert small.sketched == 0
    assert small.per_minute == pytest.approx(alone.per_minute, rel=0.01)
    assert large.failed == small.failed == alone.failed == 0


def test_easy_questions_are_devices() -> None:
    outcomes = {easy: run(Cell("Llama3-70B", System(easy=easy), 20, seed=3))[1] for easy in (0, 300, 10_000)}
    assert len({outcome.latency_s for outcome in outcomes.values()}) == 3


def test_a_cell_is_an_entry() -> None:
    cells = [Cell("Llama3-70B", system, 80, seed) for system, seed in product(SYSTEMS.values(), (1, 2))]
    assert len(set(cells)) == len(cells)
    assert setting(cells[0]).seed == 1


def test_the_worst_beside_the_best() -> None:
    """With a drafter, mode sketch is compared with all that a cloud can be with it or without."""
    ours, rival = System("sketch", acceptance=0.7), System("speculative", acceptance=0.7)
    other = System("speculative", acceptance=0.8)
    systems = {"cloud-only": CLOUD, "PICE": PICE, "speculation": rival, "ours": ours, "other": other}
    rates = {CLOUD: 10.0, PICE: 20.0, rival: 12.0, ours: 18.0, other: 99.0}
    cells = product(FIGURES, systems.values(), (80, 800), (1, 2))
    found = {Cell(llm, s, n, seed): Outcome(rates[s], 9.0, 1.0, 0.5, 0) for llm, s, n, seed in cells}
    assert figures(found, (1, 2), systems, (80, 800))["worst_over_best"] == 1.5
    found[Cell("Llama3-8B", ours, 80, 2)] = Outcome(6.0, 9.0, 1.0, 0.5, 0)
    assert figures(found, (1, 2), systems, (80, 800))["worst_over_best"] == 0.5


def test_drafters_are_in_short_runs() -> None:
    cells = columns((1,), SYSTEMS, (80, 800))
    assert {cell.questions for cell in cells if cell.system.acceptance} == {80}
    assert {cell.questions for cell in cells if not cell.system.acceptance} == {80, 800}


def test_figures_are_medians_of_ratios() -> None:
    found = {}
    for llm, seed, questions in product(LLMS, (1, 2, 3), (80, 800)):
        found[Cell(llm, CLOUD, questions, seed)] = Outcome(10.0 * seed, 100.0, 1.0, 0.0, 0)
        found[Cell(llm, PICE, questions, seed)] = Outcome(20.0 * seed + seed, 50.0 + seed, 1.0, 0.5, 0)
    found[Cell("Llama3-8B", PICE, 80, 2)] = Outcome(18.0, 60.0, 1.0, 0.0, 1)
    found[Cell("Llama3-8B", PICE, 80, 1)] = Outcome(9.5, 60.0, 1.0, 0.0, 0)
    values = figures(found, (1, 2, 3), {"cloud-only": CLOUD, "PICE": PICE}, (80, 800))
    assert values["llama70b_x"] == values["qwen72b_x"] == 2.1
    assert values["llama70b_latency_cut"] == 0.48
    assert values["worst_column_x"] == values["llama8b_short_x"] == 0.95
    assert values["failed"] == 1
    assert {
        f"{name}_{figure}" for name in FIGURES.values() for figure in ("x", "short_x", "latency_cut")
    } < set(values)
