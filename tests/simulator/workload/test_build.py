from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.simulator.workload import Request, TraceError, WorkloadSettings, build
from tandem.simulator.workload.acceptance import bernoulli, recorded, recordings
from tandem.simulator.workload.settings import Acceptance, Arrival, LengthDistribution
from tests.simulator.workload.traces import write_trace

TRACE = [Request(0.5, 10, 4, bytes([1, 0, 1, 1]), 3), Request(1.5, 20, 2, bytes([0, 1]))]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_trace(tmp_path / "t.jsonl", TRACE)
    return str(tmp_path / "t.jsonl")


def test_a_trace_as_it_is(trace: str) -> None:
    settings = WorkloadSettings(
        kind="trace", path=trace, arrival=Arrival(kind="trace"), acceptance=Acceptance(kind="trace")
    )
    first, second = build(settings)
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.0)
    assert (first.acceptance, first.device, second.device) == (TRACE[0].acceptance, 3, None)


def test_a_trace_repeats_and_may_run_faster(trace: str) -> None:
    settings = WorkloadSettings(kind="trace", path=trace, count=5, arrival=Arrival(kind="trace", speed=2.0))
    assert [r.arrival_s for r in build(settings)] == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert [r.prompt_tokens for r in build(settings)] == [10, 20, 10, 20, 10]


def test_a_trace_without_acceptance_cannot_give_it(tmp_path: Path) -> None:
    write_trace(tmp_path / "t.jsonl", [Request(0.0, 5, 5)])
    settings = WorkloadSettings(
        kind="trace", path=str(tmp_path / "t.jsonl"), acceptance=Acceptance(kind="trace")
    )
    with pytest.raises(TraceError, match="request 1: its row has no acceptance"):
        build(settings)


@given(seed=st.integers(0, 9), count=st.integers(1, 60), cv=st.floats(0, 1))
def test_synthetic_workloads_are_what_they_say(seed: int, count: int, cv: float) -> None:
    settings = WorkloadSettings(
        count=count,
        seed=seed,
        output=LengthDistribution(mean=50, cv=cv, least=3, most=90),
        acceptance=Acceptance(kind="alpha"),
    )
    requests = build(settings)
    assert requests == build(settings)
    assert len(requests) == count
    assert all(3 <= r.output_tokens <= 90 and len(r.acceptance or b"") == r.output_tokens for r in requests)
    assert all(a.arrival_s <= b.arrival_s for a, b in pairwise(requests))


def test_means_and_rates_are_met() -> None:
    settings = WorkloadSettings(
        count=20_000,
        prompt=LengthDistribution(mean=73, cv=0.3),
        arrival=Arrival(rate_per_s=40.0),
        acceptance=Acceptance(kind="alpha", alpha=0.8),
    )
    requests = build(settings)
    assert sum(r.prompt_tokens for r in requests) / 20_000 == pytest.approx(73, rel=0.01)
    assert requests[-1].arrival_s == pytest.approx(500, rel=0.03)
    tokens = sum(r.output_tokens for r in requests)
    assert sum(sum(r.acceptance or b"") for r in requests) / tokens == pytest.approx(0.8, abs=0.005)


def test_modes_have_their_shares_and_a_traces_row_goes_before_them(tmp_path: Path) -> None:
    modes = ((0.5, "cloud"), (0.25, "race"), (0.25, None))
    drawn = build(WorkloadSettings(count=4000, modes=modes, max_tokens=60, readers=((1.0, 9.0),)))
    for share, mode in modes:
        assert sum(r.mode == mode for r in drawn) / 4000 == pytest.approx(share, abs=0.03)
    assert {r.max_tokens for r in drawn} == {60}
    own = Request(0.0, 5, 5, mode="device", max_tokens=7, reader_rate=3.0)
    write_trace(tmp_path / "t.jsonl", [own, Request(1.0, 5, 5)])
    settings = WorkloadSettings(
        kind="trace",
        path=str(tmp_path / "t.jsonl"),
        modes=((1.0, "race"),),
        max_tokens=60,
        readers=((1.0, 9.0),),
    )
    first, second = build(settings)
    assert (first.mode, first.max_tokens, first.reader_rate) == ("device", 7, 3.0)
    assert (second.mode, second.max_tokens, second.reader_rate) == ("race", 60, 9.0)


def test_recordings_of_the_embedded_pair_come_along() -> None:
    families = {r.family for r in recordings()}
    assert families == {"fact", "overview", "topic", "long", "story", "compare", "arithmetic"}
    sequences = recorded([10, 500, 1], seed=1, family="story")
    assert [len(s) for s in sequences] == [10, 500, 1]
    assert set(b"".join(sequences)) == {0, 1}
    assert sequences == recorded([10, 500, 1], seed=1, family="story")
    with pytest.raises(ValueError, match="no recording of family 'poetry'"):
        recorded([1], seed=0, family="poetry")


def test_a_bad_recording_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"family": "a", "acceptance": "01"}\n{"family": "a", "acceptance": "2"}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl, row 2: acceptance must hold 0 and 1"):
        recordings(path)
    with pytest.raises(ValueError, match="No such file"):
        recordings(tmp_path / "none.jsonl")


def test_alpha_is_a_probability() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        bernoulli([3], 1.2, 0)
    assert bernoulli([3, 2], 1.0, 0) == [bytes([1, 1, 1]), bytes([1, 1])]
