"""AWC's closed form: the ways' costs, the order in which a new target's pairs try them, and what is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.policies.speculation.closed_form import ClosedForm, expected_way
from tandem.policies.speculation.history import KNOWN, PairHistory, TargetHistory
from tandem.policies.speculation.rounds import BURST
from tandem.policies.speculation.window import StaticWindow, WindowState

KNOWN_TARGET = WindowState(
    acceptance=0.6,
    rtt_s=0.01,
    tpot_s=0.05,
    queue=0.5,
    previous=4,
    verify_s=0.05,
    draft_s=0.01,
    alpha=0.8,
    judged=200,
    prior=0.8,
    verify_least_s=0.045,
    alone_s=0.05,
    shared_verify_s=0.05,
    shared_draft_s=0.01,
)


def test_pairs_of_a_new_target_try_drafts_then_fused_rounds_then_the_target_alone() -> None:
    policy = ClosedForm()
    state = replace(
        KNOWN_TARGET,
        rtt_s=0.08,
        shared_verify_s=0.0,
        shared_draft_s=0.0,
        alone_s=0.0,
        helper=True,
        verify_s=0.0,
    )
    seen = replace(state, verify_s=0.05)
    assert [policy.choose(each) for each in (state, seen, seen, seen, seen)] == [4, 4, 4, 1, 0]


def test_without_a_drafter_of_the_clouds_no_round_is_fused() -> None:
    policy = ClosedForm()
    state = replace(KNOWN_TARGET, rtt_s=0.08, shared_verify_s=0.0, alone_s=0.0)
    assert [policy.choose(state) for _ in range(4)] == [4, 4, 4, 0]


def test_the_target_alone_is_not_tried_where_it_cannot_be_faster() -> None:
    """Twenty users crowd two places of a step: a token alone would take at least half of such a verification."""
    policy = ClosedForm()
    state = replace(
        KNOWN_TARGET,
        shared_verify_s=0.0,
        alone_s=0.0,
        verify_s=0.5,
        verify_least_s=0.05,
        alpha=0.95,
        prior=0.95,
    )
    assert [policy.choose(state) for _ in range(3)] == [4, 4, 4]
    assert all(policy.choose(state) > 1 for _ in range(50))


def test_the_target_alone_is_tried_where_every_position_of_a_step_costs() -> None:
    """On few cores a step of five positions may take as long as five of one."""
    policy = ClosedForm()
    state = replace(
        KNOWN_TARGET,
        shared_verify_s=0.0,
        alone_s=0.0,
        verify_s=0.15,
        verify_least_s=0.15,
        drafted=4.0,
        alpha=0.95,
        prior=0.95,
    )
    assert [policy.choose(state) for _ in range(4)] == [4, 4, 4, 0]


@pytest.mark.parametrize(
    ("queue", "tried"), [(1.0, True), (8.0, False)], ids=["a place for each", "two places for sixteen"]
)
def test_the_target_alone_is_not_tried_where_its_turns_are_known_to_take_longer(
    queue: float, tried: bool
) -> None:
    """The target says what its step takes; with few places in it a token alone waits for all others' turns."""
    policy = ClosedForm()
    state = replace(
        KNOWN_TARGET,
        shared_verify_s=0.0,
        alone_s=0.0,
        verify_s=0.12,
        verify_least_s=0.05,
        queue=queue,
        pairs=16,
        mean_window=4.0,
        drafted=4.0,
        base_s=0.05,
    )
    chosen = [policy.choose(state) for _ in range(8)]
    assert (0 in chosen) == tried


def test_a_new_pair_of_a_known_target_begins_where_the_others_are() -> None:
    new = replace(KNOWN_TARGET, verify_s=0.0, draft_s=0.0, alpha=0.0, judged=0, previous=0)
    assert ClosedForm().choose(new) > 1
    assert ClosedForm().choose(replace(new, alone_s=0.01, fused_share=1.0)) == 0
    assert ClosedForm().choose(replace(new, rtt_s=0.08, alone_s=0.0)) == 0  # nobody has tried


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {4, 5, 6}),  # 0.06 s and 0.01 s a draft: 3.4 tokens of four drafts in 0.1 s
        ({"draft_s": 0.02}, {2, 3}),
        ({"draft_s": 0.04}, {0}),
        ({"draft_s": 0.001}, {11, 12}),
        ({"alpha": 0.3, "prior": 0.3, "draft_s": 0.03}, {0}),  # 1.4 tokens in 0.12 s
        ({"alone_s": 0.02}, {0}),
        ({"helper": True, "fused_s": 0.015}, {1}),
        ({"helper": True, "fused_s": 0.015, "alone_s": 0.01}, {0}),
        ({"fused_s": 0.015}, {4, 5, 6}),  # of times when the cloud had a drafter
        ({"rtt_s": 0.4}, {0}),
        ({"own": 3.0}, {0}),  # what it looks up it would find alone, too
        (
            {"draft_s": 0.001, "drafted": 4.0},
            {11, 12},
        ),  # a step of five positions takes as long as one of one
        ({"draft_s": 0.001, "drafted": 4.0, "alone_s": 0.025}, {3, 4, 5}),  # each takes 6 ms
        ({"drafted": 4.0, "alone_s": 0.015}, {0}),
        (  # most of these 25 ms was waiting for the others' steps
            {"draft_s": 0.001, "drafted": 4.0, "alone_s": 0.025, "widened": 500.0, "verify_growth": 0.01},
            {9, 10, 11},
        ),
    ],
)
def test_the_way_of_the_least_time_a_token(changes: dict[str, float], expected: set[int]) -> None:
    state = replace(KNOWN_TARGET, previous=0)  # no window before, from which to vary
    assert ClosedForm(accord=0.0).choose(replace(state, **changes)) in expected


def test_leaving_the_others_takes_a_larger_gain_than_joining_them() -> None:
    """γ drafts cost 31 ms a token, the target alone 28."""
    state = replace(KNOWN_TARGET, alone_s=0.028)
    assert ClosedForm().choose(replace(state, fused_share=0.0)) > 1
    assert ClosedForm().choose(replace(state, fused_share=1.0)) == 0


def test_windows_are_drawn_towards_the_others() -> None:
    alone, among = (
        ClosedForm(accord=accord).choose(replace(KNOWN_TARGET, draft_s=0.001, mean_window=4.0))
        for accord in (0.0, 1.0)
    )
    assert alone > among > 4


def test_first_verifications_behind_prompts_do_not_decide() -> None:
    """Three rounds waited four steps each; with many, that is how it is."""
    waited = replace(KNOWN_TARGET, verify_s=0.2, alone_s=0.045)
    assert ClosedForm().choose(replace(waited, judged=6)) > 1
    assert ClosedForm().choose(replace(waited, judged=600)) == 0


def test_what_is_not_chosen_is_tried_again_at_a_small_share_of_the_time() -> None:
    policy, state = ClosedForm(explore=0.01), replace(KNOWN_TARGET, alone_s=0.025, fused_share=1.0)
    windows = [policy.choose(state) for _ in range(2000)]
    tried = [window for window in windows if window > 0]
    assert tried
    lost_s = len(tried) * 0.1 * 0.25  # of a round: a quarter is taken to be lost
    assert lost_s < 0.011 * (len(windows) * BURST * 0.025)
    assert not any(ClosedForm(explore=0.0).choose(state) for _ in range(2000))


def test_what_may_be_lost_in_trying_is_saved_anew_after_a_change() -> None:
    cloud, drafts = replace(KNOWN_TARGET, alone_s=0.025, fused_share=1.0), KNOWN_TARGET

    def before_a_try(policy: ClosedForm) -> int:
        return next(n for n in range(10_000) if policy.choose(cloud) > 0)

    saved = before_a_try(ClosedForm())
    assert saved > 1
    policy = ClosedForm()
    assert not any(policy.choose(cloud) for _ in range(saved))
    assert policy.choose(drafts) > 1
    assert before_a_try(policy) == saved


def test_its_target_tells_a_new_pair_of_the_others() -> None:
    target = TargetHistory()
    first, second = (PairHistory(StaticWindow(), target=target) for _ in range(2))
    for _ in range(KNOWN - 1):
        first.note(4, 3, 4, 0.1, 0.02)
    assert second.state().shared_verify_s == 0.0
    first.note(4, 3, 4, 0.1, 0.02)
    second.note(2, 1, 2, 0.1, 0.004)
    assert first.state().shared_verify_s == pytest.approx(0.1)
    assert first.state().shared_draft_s == pytest.approx(0.002), "the fastest"


def test_a_verification_takes_a_step_of_the_target_alone_at_least() -> None:
    """The pair's own rounds are of a time when few asked; now the target's steps wait for prompts."""
    quiet = replace(KNOWN_TARGET, draft_s=0.02, rtt_s=0.03, fused_share=1.0)
    assert ClosedForm().choose(replace(quiet, alone_s=0.1, alpha=0.5, prior=0.5)) == 0
    assert ClosedForm().choose(replace(quiet, alone_s=0.1, alpha=0.9, prior=0.9)) > 1


def test_a_drafter_that_drafts_in_one_pass_drafts_more() -> None:
    one_pass = replace(KNOWN_TARGET, draft_s=0.02, drafted=3.0, alone_s=0.045)
    assert ClosedForm(accord=0.0).choose(replace(one_pass, draft_growth=0.0)) > 6
    assert ClosedForm(accord=0.0).choose(one_pass) in {2, 3}


BUSY = replace(
    KNOWN_TARGET,
    rtt_s=0.01,
    draft_s=0.0065,
    alpha=0.85,
    prior=0.85,
    alone_s=0.057,
    mean_window=9.0,
    drafted=9.0,
    widened=500.0,
    verify_growth=0.005,
)
"""Others keep the target busy with steps of 57 ms."""


def test_a_window_ends_before_the_next_step_of_a_busy_target() -> None:
    """Nine drafts arrive within the second step, and wait for the third one; with seven, a round takes two steps."""
    nine = ClosedForm(accord=0.0).choose(replace(BUSY, verify_s=3 * 0.057 - 0.0685))
    assert nine in {5, 6}
    six = replace(BUSY, verify_s=2 * 0.057 - 0.049, drafted=6.0, mean_window=6.0)
    assert ClosedForm(accord=0.0).choose(six) in {5, 6, 7}


def test_drafts_that_would_wait_for_the_next_step_cost_nothing() -> None:
    """Three drafts have a round wait until the next step, as six would."""
    three = replace(BUSY, draft_s=0.0068, verify_s=2 * 0.057 - 0.0304, drafted=3.0, verify_growth=0.0)
    assert ClosedForm(accord=0.0).choose(three) in {5, 6}


def test_a_target_that_nobody_else_asks_has_no_next_step_to_wait_for() -> None:
    alone = replace(BUSY, mean_window=0.0, verify_s=3 * 0.057 - 0.0685)
    assert ClosedForm().choose(alone) in {8, 9, 10}


def test_windows_are_varied_until_it_is_known_what_a_draft_takes() -> None:
    policy = ClosedForm(accord=0.0)
    usual = policy.choose(replace(KNOWN_TARGET, previous=0))
    assert policy.choose(replace(KNOWN_TARGET, previous=usual)) == usual + 2
    assert policy.choose(replace(KNOWN_TARGET, previous=usual, widened=500.0)) == usual
    cheap = replace(KNOWN_TARGET, draft_s=0.001)
    for most in (2, 3, 6):
        assert ClosedForm(start=2, most=most).choose(replace(cheap, previous=most)) == max(2, most - 2)


def test_windows_are_no_wider_than_they_may_be() -> None:
    assert ClosedForm(most=6).choose(replace(KNOWN_TARGET, draft_s=0.001)) == 6


@pytest.mark.parametrize(
    "wrong", [{"start": 1}, {"start": 13}, {"most": 3}, {"most": 13}, {"first": 0}, {"explore": 1.1}]
)
def test_parameters_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="needs"):
        ClosedForm(**wrong)  # type: ignore[arg-type]


def test_the_best_way_of_an_answer_is_expected_from_what_is_known() -> None:
    """A new pair's device tells its speed."""
    new = TargetHistory().new_pair(rtt_s=0.02)
    near = expected_way(new, alone_s=0.05, draft_s=0.005, alpha=0.8)
    assert near.token_s < 0.05
    assert near.drafted > 1.0 > near.steps
    far = expected_way(TargetHistory().new_pair(rtt_s=0.5), alone_s=0.05, draft_s=0.005, alpha=0.8)
    assert far == pytest.approx((0.05, 0.0, 1.0)), "the target decodes alone"
    never = expected_way(new, alone_s=0.05, draft_s=0.005, alpha=0.01)
    assert never.drafted == 0.0


def test_a_window_costs_what_its_positions_delay_the_others() -> None:
    """Eleven other pairs wait for each position of a round that costs its own pair next to nothing."""
    state = replace(KNOWN_TARGET, drafted=4.0, mean_window=0.0, draft_s=0.0005, rtt_s=0.0, base_s=0.045)
    alone = ClosedForm().choose(replace(state, pairs=1, position_s=0.001))
    crowded = ClosedForm().choose(replace(state, pairs=12, position_s=0.001))
    assert crowded < alone
    assert ClosedForm().choose(replace(state, pairs=12, position_s=0.0)) >= alone, (
        "if the target says nothing"
    )


def test_drafts_that_were_unlucky_are_tried_again_sooner_than_drafts_that_are_seen_to_be_bad() -> None:
    def tries(judged: int) -> int:
        policy = ClosedForm()
        state = replace(KNOWN_TARGET, rtt_s=0.045, alpha=0.6, prior=0.6, judged=judged, previous=0)
        return sum(policy.choose(state) > 1 for _ in range(2000))

    assert 0 < 2 * tries(100_000) < tries(10)
