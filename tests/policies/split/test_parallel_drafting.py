from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split import LinearDelay
from tandem.policies.split.parallel_drafting import (
    NOTHING,
    Ahead,
    HatParallelDrafting,
    NoParallelDrafting,
    WaitState,
    parallel_drafting,
)

STATE = WaitState(
    tokens=5,
    left=100,
    link_token_s=8000 / 8e6 + 8000 / 16e6,
    delay_s=0.02,
    draft_s=LinearDelay(0.004, 0.001),
)
"""5 ms up, 20 ms in the cloud, 2.5 ms down; a step of k branches takes 4 + k ms."""


@pytest.mark.parametrize(
    ("k", "change", "ahead"),
    [
        (1, {}, Ahead(1, 5)),  # 27.5 / 5
        (4, {}, Ahead(4, 3)),  # 27.5 / 8
        (4, {"rtt_s": 0.05}, Ahead(4, 9)),  # 77.5 / 8
        (4, {"passed_s": 0.02}, Ahead(3, 1)),  # 7.5 / 8: there is time for a step of three
        (4, {"passed_s": 0.024}, NOTHING),
        (4, {"passed_s": 1.0}, NOTHING),
        (4, {"left": 2}, Ahead(4, 2)),
        (4, {"left": 0}, NOTHING),
        (4, {"delay_s": 10.0}, Ahead(4, 12)),
        (4, {"draft_s": LinearDelay(0.0, 0.0)}, Ahead(4, 12)),
    ],
)
def test_hats_equation(k: int, change: dict[str, float], ahead: Ahead) -> None:
    assert HatParallelDrafting(k).choose(replace(STATE, **change)) == ahead  # type: ignore[arg-type]


@given(
    k=st.integers(1, 8),
    state=st.builds(
        WaitState,
        tokens=st.integers(1, 13),
        left=st.integers(0, 40),
        link_token_s=st.floats(1e-6, 0.1),
        delay_s=st.floats(0, 1),
        draft_s=st.builds(LinearDelay, st.floats(1e-4, 0.1), st.floats(0, 0.01)),
        rtt_s=st.floats(0, 0.3),
        passed_s=st.floats(0, 1),
    ),
)
def test_drafting_never_outlasts_the_wait_and_uses_all_of_it(k: int, state: WaitState) -> None:
    branches, steps = HatParallelDrafting(k, most=10**6).choose(state)
    slack = 1 + 1e-9
    assert steps * state.draft_s(branches) <= state.wait_s * slack
    if steps < state.left:
        assert (steps + 1) * state.draft_s(max(branches, 1)) * slack >= state.wait_s
    if branches < k and state.left:
        assert state.draft_s(branches + 1) * slack >= state.wait_s, "one branch more would have had time"


def test_without_it_the_device_waits() -> None:
    assert NoParallelDrafting().choose(STATE) == NOTHING


@pytest.mark.parametrize("parameters", [{"k": 0}, {"most": 0}])
def test_there_is_a_branch_and_a_step(parameters: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="k ≥ 1"):
        HatParallelDrafting(**parameters)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"most": 0}])
def test_nonsense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="needs k ≥ 1 and most ≥ 1"):
        parallel_drafting.create("hat", **wrong)


def test_one_branch_of_one_step_is_the_least() -> None:
    assert parallel_drafting.create("hat", k=1, most=1) is not None
    assert NOTHING == (0, 0)
