"""Frontiers: what counts as worse, the rivals' best at equal stall, and who is told what."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.benchmarks.tokenflow import frontier
from tandem.benchmarks.tokenflow.frontier import (
    ALLOWED,
    BATCHINGS,
    BUFFERED,
    CHOOSING,
    FIRST_COME,
    OURS,
    POLICIES,
    TOLD,
    WARM,
    WARM_S,
    WHOLE,
    Point,
    Run,
    figures_of,
    least_p99_s,
    p99_at,
    prompts_alone_s,
    worse_in,
)
from tandem.benchmarks.tokenflow.simulated import SETUPS, requests_of
from tandem.policies.reader.quality import Quality
from tandem.simulator.workload import Request

SMALL = replace(SETUPS[0], burst=6, count=6, output=64)


def point(ttft_s: float = 10.0, stall_s: float = 1.0, raw: float = 100.0, p99_s: float = 20.0) -> Point:
    return Point(ttft_s, p99_s, stall_s, raw, 0.0)


@pytest.mark.parametrize(
    ("ours", "worse"),
    [
        (point(10.4, 1.09, 95.5), 0),
        (point(10.6, 1.09, 95.5), 1),
        (point(10.6, 1.11, 95.5), 2),
        (point(10.6, 1.11, 94.0), 3),
        (point(5.0, 1.2, 90.0), 2),
    ],
)
def test_small_differences_count_as_none(ours: Point, worse: int) -> None:
    assert worse_in(ours, point()) == worse


def test_the_least_p99_at_equal_stall() -> None:
    rivals = [
        point(stall_s=0.0, p99_s=200.0),
        point(stall_s=10.0, p99_s=100.0),
        point(stall_s=4.0, p99_s=190.0),
    ]
    assert p99_at(0.0, rivals) == 200.0
    assert (
        p99_at(5.0, rivals) == 150.0
    )  # between the first and the second, below the third's and the second's 175
    assert p99_at(99.0, rivals) == 100.0
    assert p99_at(1.0, rivals[1:]) == 190.0, "all stall more: that of the least stall"


def test_figures_are_over_all_rivals_and_setups() -> None:
    poisson = SETUPS[2]
    equal = {name: point() for name in POLICIES}
    found = {
        SETUPS[0]: {**equal, OURS: point(p99_s=10.0)},
        SETUPS[1]: {**equal, OURS: point(p99_s=18.0)},
        poisson: {**equal, OURS: point(ttft_s=20.0, raw=90.0), TOLD: point(raw=120.0)},
    }
    assert figures_of("host", found, {SETUPS[0]: 8.0, SETUPS[1]: 16.0}) == {
        "host_worse_in_two": len(FIRST_COME),
        "host_raw_over_best": 0.75,
        "host_p99_over_best_equal_stall": 0.9,
        "host_p99_over_best_equal_stall_median": 0.7,
        "host_p99_over_least": 1.25,
        "host_rivals_p99_over_least": 1.25,
    }


def burst(outputs: Sequence[int], rate: float) -> list[Request]:
    return [Request(0.0, 8, output, reader_rate=rate) for output in outputs]


@given(
    outputs=st.lists(st.integers(min_value=1, max_value=500), min_size=1, max_size=60),
    at_once=st.integers(min_value=1, max_value=20),
    rate=st.sampled_from([5.0, 20.0]),
)
def test_no_policy_is_below_the_bound(outputs: list[int], at_once: int, rate: float) -> None:
    """A policy that decodes for `at_once` readers, each as fast as it reads, the longest first."""
    ends_s = [0.0] * at_once
    begun_s = []
    for output in sorted(outputs, reverse=True):
        begun_s.append(heapq.heappop(ends_s))
        heapq.heappush(ends_s, begun_s[-1] + output / rate)
    bound = least_p99_s(burst(outputs, rate), at_once * rate)
    assert bound <= np.percentile(begun_s, 99) + 1e-9


def test_the_bound_is_reached_by_equal_answers_in_turn() -> None:
    requests = burst([400] * 1000, 20.0)
    assert least_p99_s(requests, 250 * 20.0) == pytest.approx(3 * 20.0, rel=0.02), (
        "three of four rounds before"
    )
    assert least_p99_s(requests, 1000 * 20.0, prefill_s=7.0) == 7.0, (
        "all at once, when their prompts are computed"
    )


def test_prompts_alone_take_longer_if_there_are_more() -> None:
    few, more = (prompts_alone_s(replace(SMALL, burst=count, count=count), 0) for count in (6, 60))
    assert 0 < 5 * few < more


def test_only_srpt_is_told_a_length() -> None:
    asked = frontier._asked(Run(SMALL, True, OURS, 3, WHOLE))
    assert [r.max_tokens for r in asked] == [ALLOWED] * (WARM + 6)
    told, true = frontier._asked(Run(SMALL, True, TOLD, 3, WHOLE))[WARM:], requests_of(SMALL, 3)
    assert all(t.max_tokens >= r.output_tokens == t.output_tokens for t, r in zip(told, true, strict=True))
    assert any(t.max_tokens > r.output_tokens for t, r in zip(told, true, strict=True))


@pytest.mark.parametrize("seed", [0, CHOOSING])
def test_an_engine_is_warmed_by_requests_that_are_not_judged(seed: int) -> None:
    asked, judged = frontier._asked(Run(SMALL, True, OURS, seed, WHOLE)), requests_of(SMALL, seed)
    assert [r.arrival_s for r in asked[:WARM]] == [0.0] * WARM
    assert [r.arrival_s - WARM_S for r in asked[WARM:]] == pytest.approx([r.arrival_s for r in judged])
    lengths = [[(r.prompt_tokens, r.output_tokens) for r in part] for part in (asked[WARM:], judged)]
    assert lengths[0] == lengths[1]
    assert not {(r.prompt_tokens, r.output_tokens) for r in asked[:WARM]} & set(lengths[1])


def test_each_has_the_batching_of_the_highest_qos(monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"FCFS": ("chunked", 256), OURS: BUFFERED[1]}
    seen: list[Run] = []

    def simulate_all(runs: Sequence[Run], what: str) -> dict[Run, Quality]:
        seen.extend(runs)
        return {r: _quality(float(r.batching == best[r.policy])) for r in runs}

    monkeypatch.setattr(frontier, "simulate_all", simulate_all)
    cases = [(SMALL, False, name) for name in best]
    assert frontier.choose(cases) == {(SMALL, False, name): batching for name, batching in best.items()}
    assert {r.seed for r in seen} == {CHOOSING}
    assert len(seen) == len(BATCHINGS) + len(BUFFERED)


def test_the_frontiers_are_drawn(tmp_path: Path) -> None:
    frontier._draw({setup: {name: point() for name in POLICIES} for setup in SETUPS[:4]}, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert "mean stall, s" in drawn


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_serves_all(policy: str) -> None:
    quality = Run(SMALL, False, policy, 0, BUFFERED[0] if policy == OURS else WHOLE).quality()
    assert quality.requests == 6
    assert quality.tokens == sum(r.output_tokens for r in requests_of(SMALL, 0))


def _quality(qos: float) -> Quality:
    return Quality(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, qos)
