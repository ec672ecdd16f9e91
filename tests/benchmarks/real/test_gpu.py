"""Acceptances on tables of GPUs: what pays is drafted, and the policy is chosen apart from where it is judged."""

from __future__ import annotations

from random import Random

import pytest

from tandem.benchmarks.real.gpu import (
    CASES,
    LOADS,
    LOW,
    SAMPLE,
    SETS,
    WINDOWS,
    Case,
    best_window,
    figures,
    halves,
    ratios,
)
from tandem.benchmarks.real.recording import Recorded, read

BIG, SMALL = "4xA100", "H100"


def recorded(of_set: str, alpha: float, count: int = 6, tokens: int = 80) -> list[Recorded]:
    random = Random(1)
    return [
        Recorded(of_set, str(i), 100 + i, "".join("01"[random.random() < alpha] for _ in range(tokens)))
        for i in range(count)
    ]


PAIR = recorded("HumanEval", 0.97) + recorded("Vicuna", 0.2)


def test_drafts_that_are_accepted_pay_where_steps_are_long() -> None:
    cases = [Case(BIG, "code", LOW), Case(SMALL, "code", LOW)]
    found = ratios(PAIR, 1, 40, {"gain": WINDOWS["gain"]}, cases)["gain"]
    assert found[Case(BIG, "code", LOW)] > 1.8
    assert found[Case(BIG, "code", LOW)] > found[Case(SMALL, "code", LOW)]


@pytest.mark.slow
def test_of_window_policies_the_one_is_chosen_that_gives_up_what_does_not_pay() -> None:
    case = Case(BIG, "chat", LOW)
    found = ratios(PAIR, 1, 40, {name: WINDOWS[name] for name in ("static", "gain")}, [case])
    assert found["static"][case] < found["gain"][case]
    assert best_window(found) == "gain"


def test_a_policy_that_is_somewhere_slower_than_the_cloud_is_chosen_only_if_all_are() -> None:
    code, chat = Case(BIG, "code", LOW), Case(BIG, "chat", LOW)
    found = {"bold": {code: 4.0, chat: 0.9}, "fast": {code: 3.0, chat: 0.98}, "shy": {code: 1.0, chat: 1.0}}
    assert best_window(found) == "fast"
    assert best_window({"bold": found["bold"], "worse": {code: 9.0, chat: 0.8}}) == "bold"


def test_the_halves_share_no_recording_and_have_both_kinds_of_text() -> None:
    choose, judge = halves(PAIR + recorded("GSM8K", 0.5))
    assert not {(one.set, one.task) for one in choose} & {(one.set, one.task) for one in judge}
    for side in (choose, judge):
        assert {SETS[one.set] for one in side} == {"code", "chat"}
    with pytest.raises(ValueError, match="fewer than two recordings of chat"):
        halves(recorded("HumanEval", 0.9) + recorded("Vicuna", 0.9, count=1))


def test_figures_are_those_of_the_worst_target() -> None:
    found = dict.fromkeys(CASES, 1.5)
    found |= {
        Case(SMALL, "chat", LOADS[-1]): 0.9,
        Case(BIG, "code", LOW): 1.2,
        Case(SMALL, "code", LOADS[-1]): 1.0,
    }
    said = figures(found)
    assert (said["code_gpu_x"], said["chat_gpu_x"], said["worst_gpu_x"]) == (1.2, 1.5, 0.9)
    assert said[f"code_gpu_x_{BIG}"] == 1.2


def test_tandems_own_recordings_serve_to_choose_and_to_judge() -> None:
    for side in halves(read(SAMPLE)):
        assert all(set(one.acceptance) <= {"0", "1"} for one in side)
        assert min(one.prompt_tokens for one in side) > 0
