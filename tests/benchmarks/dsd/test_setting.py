"""Cells are measured in steady state, in either reading."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.benchmarks.dsd.setting import (
    AUTHORS,
    LENGTHS,
    PHYSICAL,
    Reading,
    Setting,
    measure,
    requests,
    under_way,
)
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.runs.run import simulate
from tests.effort import tried

USERS = 8
COUNT = tried(24, 60)
"""Answers that count."""


def _config(reading: Reading = PHYSICAL, **changes: Any) -> Any:
    """One target and 30 drafters, at USERS requests at once."""
    known = {"drafters": 30, "targets": 1, "reading": reading, "count": COUNT}
    return Setting("GSM8K", 0.8, USERS * 600 / 30, **known | changes).config()


@pytest.mark.slow
def test_throughput_is_littles_and_near_the_answers_over_their_span() -> None:
    config = _config(count=tried(150, 300))
    tokens = LENGTHS["GSM8K"][1]
    cell = measure(config)
    assert cell.throughput * (cell.ttft_s + (tokens - 1) * cell.tpot_s) == pytest.approx(USERS, rel=0.1)
    answers = simulate(config, requests=requests(config)).answers[2 * USERS :]
    span_s = answers[-1].arrival_s - answers[0].arrival_s
    assert cell.throughput == pytest.approx((len(answers) - 1) / span_s, rel=0.03)


def test_neither_the_beginning_nor_the_end_counts() -> None:
    config = _config(count=60)
    answers = simulate(config, requests=requests(config)).answers
    assert len(answers) == 60 + 3 * USERS
    counted = answers[2 * USERS : -USERS]
    cell = measure(config)
    assert cell.ttft_s == pytest.approx(sum(one.first_s - one.arrival_s for one in counted) / 60)
    assert cell.throughput == pytest.approx(USERS * 60 / sum(one.ended_s - one.arrival_s for one in counted))
    makespan_s = max(one.last_s for one in answers)
    assert cell.throughput > len(answers) / makespan_s  # which counts the end, where few are left


def test_each_user_has_ten_answers_that_count() -> None:
    assert _config(count=None).workload.count == (10 + 3) * USERS
    assert _config(count=None, turnovers=4).workload.count == (4 + 3) * USERS


def test_seeds_differ_in_prompts() -> None:
    def lengths(seed: int) -> list[tuple[int, int]]:
        return [(one.prompt_tokens, one.output_tokens) for one in requests(_config(seed=seed))]

    assert len(lengths(1)) == len(lengths(2)) == COUNT + 3 * USERS
    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)


def test_requests_under_way_in_the_paper() -> None:
    assert under_way("GSM8K", (600, 10, "static")) == pytest.approx(25.8 * (0.352 + 137 * 0.0401))


def test_an_rtt_each_way_is_two() -> None:
    rtts_ms = [_config(reading, rtt_ms=30.0).topology()[1][0].link.rtt_ms for reading in (PHYSICAL, AUTHORS)]
    assert rtts_ms == [30.0, 60.0]


def test_drafts_in_one_pass_make_wide_windows_cheap() -> None:
    one_pass = PHYSICAL._replace(one_pass=True)

    def tpot_s(reading: Reading, size: int) -> float:
        return measure(_config(reading), reading, lambda: StaticWindow(size)).tpot_s

    assert tpot_s(one_pass, 8) < 0.8 * tpot_s(PHYSICAL, 8)


def test_the_first_accepted_draft_is_later_than_the_first_token() -> None:
    until_draft = PHYSICAL._replace(first_draft=True)
    ours, theirs = measure(_config()), measure(_config(until_draft), until_draft)
    assert (ours.throughput, ours.tpot_s) == (theirs.throughput, theirs.tpot_s)
    assert ours.ttft_s < theirs.ttft_s < ours.ttft_s + 4 * 4 * ours.tpot_s


def test_fused_rounds_need_no_draft_to_be_the_first() -> None:
    until_draft = PHYSICAL._replace(first_draft=True)
    config = _config(until_draft)
    fused = measure(config, until_draft, lambda: StaticWindow(1))
    assert fused.ttft_s < measure(config, PHYSICAL, lambda: StaticWindow(1)).ttft_s + 2 * fused.tpot_s


def test_a_drafter_beside_the_target_drafts_in_fused_rounds() -> None:
    drafted = {
        colocated: simulate(_config(colocated=colocated), window=lambda: StaticWindow(1)).summary()["modes"]
        for colocated in (False, True)
    }
    assert drafted[False]["speculative"]["drafted"] == 0
    assert drafted[True]["speculative"]["drafted"] > 0
