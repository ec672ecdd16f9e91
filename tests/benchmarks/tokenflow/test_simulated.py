"""Every policy is judged at its own best chunk, which was not chosen on what is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.benchmarks.tokenflow import simulated
from tandem.benchmarks.tokenflow.simulated import CHOOSING, KINDS, SETUPS, Job, Setup, choose_chunks
from tandem.policies.reader.quality import Quality

BURST, POISSON = SETUPS[0], SETUPS[2]


def _quality(qos: float) -> Quality:
    return Quality(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, qos)


def test_each_policy_gets_the_chunk_of_the_highest_qos_by_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Job] = []
    best = {
        (BURST, "FCFS chunked"): 512,
        (BURST, "Andes-like"): 2048,
        (BURST, "TokenFlow"): 256,
        (POISSON, "FCFS chunked"): 1024,
        (POISSON, "Andes-like"): 256,
        (POISSON, "TokenFlow"): 2048,
    }

    def simulate_all(jobs: Sequence[Job], what: str) -> dict[Job, Quality]:
        asked.extend(jobs)
        return {job: _quality(-abs(job.chunk - best[job.setup, job.kind])) for job in jobs}

    monkeypatch.setattr(simulated, "simulate_all", simulate_all)
    chosen = choose_chunks((BURST, POISSON), (256, 512, 1024, 2048))
    assert {key: chosen[key] for key in best} == best
    assert set(chosen) == {(setup, kind) for setup in (BURST, POISSON) for kind in KINDS}
    assert {job.seed for job in asked} == {CHOOSING}


def test_a_single_chunk_needs_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(simulated, "simulate_all")
    assert set(choose_chunks((BURST,), (512,)).values()) == {512}


def test_a_trace_is_judged_on_requests_that_nothing_was_chosen_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "azure_llm_2023").mkdir()
    rows = "".join(f"{10 + i},{100 + i},{i}\n" for i in range(9))
    (tmp_path / "azure_llm_2023" / "some.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    monkeypatch.setattr(simulated, "DATA", tmp_path)
    setup = Setup("some", "RTX4090", "Llama-3.1-8B", trace="some.csv", count=5)
    judged, choosing = simulated._trace(setup, 0), simulated._trace(setup, CHOOSING)
    assert [r.prompt_tokens for r in judged] == [100, 101, 102, 103, 104]
    assert [r.prompt_tokens for r in choosing] == [105, 106, 107, 108]
    assert [r.arrival_s for r in choosing] == [0.0, 1.0, 2.0, 3.0]


def test_the_chunk_matters() -> None:
    """Else the sweep would compare runs that are the same."""
    small = replace(BURST, burst=6, count=6, output=64)
    found = {chunk: simulated.streams(small, KINDS["TokenFlow"], 0, chunk) for chunk in (64, 2048)}
    firsts = [[stream.times_s[0] for stream in streams] for streams in found.values()]
    assert firsts[0] != firsts[1]


def test_gains_are_over_the_best_of_all_others_figure_by_figure() -> None:
    theirs = {
        "FCFS": (8.0, 100.0),
        "FCFS chunked": (5.0, 80.0),
        "FCFS optimistic": (9.0, 50.0),
        "Andes-like": (6.0, 120.0),
    }
    found = {
        (setup, kind): [
            replace(_quality(0.0), ttft_p99_s=ttft_s, effective_throughput=tokens, stall_mean_s=stall_s)
        ]
        for setup, ours, stall_s in ((BURST, (4.0, 180.0), 0.5), (SETUPS[1], (2.5, 132.0), 0.0))
        for kind, (ttft_s, tokens) in {**theirs, "TokenFlow": ours}.items()
    }
    cut = simulated._spread("cut", found, [BURST, SETUPS[1]], "ttft_p99_s", sign=-1)
    assert cut == {
        "cut": 0.5,
        "cut_stall_s": 0.0,
        "cut_median": pytest.approx(0.35),
        "cut_least": pytest.approx(0.2),
        "cut_least_stall_s": 0.5,
    }
    gain = simulated._spread("gain", found, [BURST], "effective_throughput")
    assert gain == {
        "gain": 0.5,
        "gain_stall_s": 0.5,
        "gain_median": 0.5,
        "gain_least": 0.5,
        "gain_least_stall_s": 0.5,
    }
