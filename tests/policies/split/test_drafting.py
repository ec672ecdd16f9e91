from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.estimators.calibration import ASSUMED
from tandem.policies.speculation.arithmetic import MAX_WINDOW, expected_tokens
from tandem.policies.split.drafting import (
    DraftingPolicy,
    DraftRound,
    DraftState,
    ExpectedGain,
    Fallback,
    NoDraft,
    Threshold,
    drafting,
)
from tests.effort import tried

COSTS = DraftState(left=100, draft_s=0.015, token_s=0.005, round_s=0.1)


def draft(policy: DraftingPolicy, confidences: list[float], state: DraftState = COSTS) -> tuple[float, ...]:
    """The draft that the policy makes of a drafter with these confidences."""
    made: tuple[float, ...] = ()
    for confidence in confidences:
        if not policy.go_on(replace(state, confidences=made, left=state.left - len(made))):
            break
        made = (*made, confidence)
    return made


def judge(policy: DraftingPolicy, made: tuple[float, ...], accepted: int) -> None:
    draft_s = len(made) * COSTS.draft_s
    policy.learn(DraftRound(made, accepted, draft_s, draft_s + COSTS.round_s + len(made) * COSTS.token_s))


@pytest.mark.parametrize(
    ("confidences", "drafted"),
    [
        ([0.9, 0.7, 0.5, 0.9], 3),  # 0.5 is kept as the last
        ([0.1, 0.9], 1),
        ([0.6, 0.6, 0.59, 0.9], 3),  # 0.6 is not below
        ([0.9] * 20, MAX_WINDOW),
    ],
)
def test_hats_threshold(confidences: list[float], drafted: int) -> None:
    assert draft(Threshold(), confidences) == tuple(confidences[:drafted])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.integers(0, 20))
def test_only_the_last_token_is_unsure(confidences: list[float], eta: float, left: int) -> None:
    made = draft(Threshold(eta), confidences, replace(COSTS, left=left))
    assert all(confidence >= eta for confidence in made[:-1])
    assert len(made) <= left
    if len(made) < min(len(confidences), left, MAX_WINDOW):
        assert not made or made[-1] < eta, "what fell below η is kept"


def test_plain_u_shape_never_drafts() -> None:
    assert draft(NoDraft(), [1.0]) == ()


@pytest.mark.parametrize(
    ("parameters", "which"), [({"eta": 1.1}, "eta"), ({"eta": -0.1}, "eta"), ({"most": 0}, "most")]
)
def test_a_threshold_is_a_probability(parameters: dict[str, float], which: str) -> None:
    with pytest.raises(ValueError, match=which):
        drafting.create("threshold", **parameters)


def test_expected_gain_before_anything_is_known() -> None:
    """0.02 s a token, 0.1 s a round: 0.8·0.10 > 1·0.02, 0.5·0.8·0.12 > 1.5·0.02, but 0.25·0.8·0.14 < 1.75·0.02."""
    assert draft(ExpectedGain(), [0.5] * 9) == (0.5, 0.5)


def test_expected_gain_compares_with_what_rounds_give() -> None:
    policy = ExpectedGain()
    policy.learn(DraftRound((), 0, 0.0, 0.09))  # ρ = 11.1 tokens/s: 0.22 of a token in the time of one more
    assert draft(policy, [0.5] * 9) == (0.5, 0.5)  # 0.8, 0.4 > 0.22 > 0.2
    policy.learn(DraftRound((), 0, 0.0, 0.01))
    assert draft(policy, [0.5] * 9) == (0.5,)  # ρ = 1.95 / 0.0955 s: 0.8 > 0.408 > 0.4


def test_what_is_ready_costs_its_verification_only() -> None:
    ready = replace(COSTS, draft_s=0.0)
    assert len(draft(ExpectedGain(), [0.5] * 9, ready)) > len(draft(ExpectedGain(), [0.5] * 9))


@given(round_s=st.floats(0.01, 1), cost_s=st.floats(1e-3, 0.1))
def test_looking_one_token_ahead_finds_the_best_length(round_s: float, cost_s: float) -> None:
    """All tokens have equal acceptance, and rounds give the maximal rate."""
    rates = [expected_tokens(ASSUMED, n) / (round_s + n * cost_s) for n in range(MAX_WINDOW + 1)]
    policy = ExpectedGain()
    policy.learn(DraftRound((), 0, 0.0, 1 / max(rates)))
    made = draft(policy, [ASSUMED] * 20, replace(COSTS, draft_s=cost_s, token_s=0.0, round_s=round_s))
    assert rates[len(made)] == pytest.approx(max(rates), rel=1e-6)


def tokens_per_s(policy: DraftingPolicy, state: DraftState, bias: float) -> float:
    """A drafter whose tokens are accepted as often as it says, to the power of `bias`."""
    random, tokens, seconds = Random(5), 0, 0.0
    for _ in range(tried(2000, 4000)):
        chances = [random.random() ** 0.3 for _ in range(MAX_WINDOW)]
        made = draft(policy, chances, state)
        accepted = next((n for n, chance in enumerate(made) if random.random() >= chance**bias), len(made))
        draft_s = len(made) * state.draft_s
        took_s = state.round_s + len(made) * (state.draft_s + state.token_s)
        policy.learn(DraftRound(made, accepted, draft_s, took_s))
        tokens, seconds = tokens + accepted + 1, seconds + took_s
    return tokens / seconds


@pytest.mark.parametrize("bias", [1.0, 4.0], ids=["calibrated", "overconfident"])
@pytest.mark.parametrize("round_s", [0.03, 0.1, 0.4])
def test_expected_gain_is_no_worse_than_the_best_threshold(bias: float, round_s: float) -> None:
    state = replace(COSTS, round_s=round_s)
    best = max(tokens_per_s(Threshold(eta / 10), state, bias) for eta in range(2, 10))
    assert tokens_per_s(ExpectedGain(), state, bias) > 0.98 * best


@pytest.mark.parametrize("round_s", [0.03, 0.1, 0.4])
@pytest.mark.parametrize("policy", ["threshold", "expected_gain"])
def test_fallback_costs_nothing_where_drafting_pays(policy: str, round_s: float) -> None:
    """A few bad drafts do not switch drafting off, unless it barely pays."""
    state = replace(COSTS, round_s=round_s)
    assert tokens_per_s(Fallback(policy), state, 1.0) > 0.97 * tokens_per_s(
        drafting.create(policy), state, 1.0
    )


def test_fallback_leaves_when_drafts_do_not_pay_and_comes_back() -> None:
    """Drafts of 4 cost 0.08 s and pay as long as more than 0.8 are accepted: 4·0.95³¹ = 0.82, 4·0.95³² = 0.77."""
    policy = Fallback(parameters={"most": 4})
    drafts = []
    for _ in range(100):
        made = draft(policy, [0.9] * 4)
        judge(policy, made, 0)
        drafts.append(len(made))
    assert drafts[:33] == [4] * 32 + [0]
    again = [at for at, made in enumerate(drafts) if made and at >= 32]
    assert again == [48, 65, 82, 99], "one after every sixteen without"
    drafts = []
    for _ in range(60):
        made = draft(policy, [0.9] * 4)
        judge(policy, made, len(made))
        drafts.append(len(made))
    assert drafts[-20:] == [4] * 20, "drafting pays again"


def test_fallback_comes_back_at_once_when_rounds_become_dear() -> None:
    policy = Fallback(parameters={"most": 4})
    for _ in range(33):
        judge(policy, draft(policy, [0.9] * 4), 0)
    assert draft(policy, [0.9] * 4) == ()
    assert len(draft(policy, [0.9] * 4, replace(COSTS, round_s=0.2))) == 4


def test_fallback_around_one_that_has_given_up_makes_it_learn_again() -> None:
    policy = Fallback("expected_gain", {"most": 4}, explore=4)
    state = replace(COSTS, round_s=0.02)
    for _ in range(60):
        judge(policy, draft(policy, [0.9] * 4, state), 0)
    assert draft(policy, [0.9] * 4, replace(state, left=0)) == ()
    drafts = []
    for _ in range(200):
        made = draft(policy, [0.9] * 4)
        judge(policy, made, len(made))
        drafts.append(len(made))
    assert min(drafts[-20:]) == 4
    with pytest.raises(ValueError, match="explore"):
        Fallback(explore=0)


@pytest.mark.parametrize("name", list(drafting))
@given(left=st.integers(0, 20), confidences=st.lists(st.floats(0, 1), min_size=20, max_size=20))
def test_a_draft_is_never_longer_than_what_the_output_may_have(
    name: str, left: int, confidences: list[float]
) -> None:
    assert len(draft(drafting.create(name), confidences, replace(COSTS, left=left))) <= left


def test_a_longer_draft_takes_longer_and_so_pays_more_for_its_round() -> None:
    """0.025 s a token: 0.5·0.8·(0.1 + 0.025) > 1.5·0.025, but 0.25·0.8·(0.1 + 0.05) < 1.75·0.025."""
    dearer = replace(COSTS, token_s=0.01)
    assert draft(ExpectedGain(), [0.5] * 9, dearer) == (0.5, 0.5)
    assert draft(ExpectedGain(), [0.9] * 9, replace(COSTS, left=1)) == (0.9,), "the output may have one more"
