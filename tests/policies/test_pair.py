from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pair import RECENT_ROUNDS, Least, Pair, Target
from policies.speculation import expected_tokens
from policies.window import StaticWindow

seconds = st.floats(0, 1)
rounds = st.lists(
    st.tuples(st.integers(1, 12), st.floats(0, 1), seconds, seconds), min_size=1, max_size=3 * RECENT_ROUNDS
)


@given(rounds=rounds)
def test_the_recent_rounds_count_and_no_others(rounds: list[tuple[int, float, float, float]]) -> None:
    pair = Pair(StaticWindow(4))
    seen = [(g, int(share * g), v, d) for g, share, v, d in rounds]
    for gamma, accepted, verify_s, draft_s in seen:
        pair.note(gamma, accepted, accepted + 1, verify_s, draft_s)
    recent = seen[-RECENT_ROUNDS:]
    state = pair.state()
    drafted = sum(g for g, *_ in recent)
    accepted = sum(a for _, a, *_ in recent)
    assert state.acceptance == pytest.approx(accepted / drafted)
    judged = sum(min(a + 1, g) for g, a, *_ in recent)
    assert state.judged == judged
    assert state.alpha == pytest.approx(accepted / judged)
    assert state.verify_s == pytest.approx(sum(v for *_, v, _ in recent) / len(recent), abs=1e-9)
    assert state.draft_s == pytest.approx(sum(d for *_, d in recent) / drafted, abs=1e-9)
    assert state.tpot_s == pytest.approx(sum(v for *_, v, _ in recent) / (accepted + len(recent)), abs=1e-9)


def test_a_new_pair_knows_nothing_but_its_link() -> None:
    state = Pair(StaticWindow(4), rtt_s=0.02, queue=0.5).state()
    assert (state.acceptance, state.tpot_s, state.verify_s, state.draft_s, state.fused_s) == (0, 0, 0, 0, 0)
    assert (state.rtt_s, state.queue, state.previous, state.judged) == (0.02, 0.5, 0, 0)


def test_fused_rounds_say_nothing_about_the_device() -> None:
    pair = Pair(StaticWindow(1))
    pair.note(4, 3, 4, 0.1, 0.02)
    before = pair.state()
    assert pair.choose() == 1
    pair.note_fused(0, 1, 0.02)
    pair.note_fused(0, 1, 0.02)
    state = pair.state()
    assert (state.acceptance, state.verify_s, state.draft_s) == (0.75, before.verify_s, before.draft_s)
    assert state.fused_s == state.tpot_s == pytest.approx(0.02)
    assert state.previous == 1


def test_pairs_of_one_target_learn_from_each_other() -> None:
    target = Target()
    first, second = Pair(StaticWindow(4), target=target), Pair(StaticWindow(4), target=target)
    first.note(4, 3, 4, 0.1, 0.02)
    first.note_fused(0, 1, 0.025)
    state = second.state()
    assert (state.prior, state.fused_s) == (pytest.approx(0.75), pytest.approx(0.025))
    assert (state.judged, state.verify_s, state.draft_s) == (0, 0, 0)  # the device itself is still unknown
    assert Pair(StaticWindow(4)).state().prior == 0


def test_what_one_tries_alone_says_little_about_what_all_would_get() -> None:
    target = Target()
    pairs = [Pair(StaticWindow(4), target=target) for _ in range(8)]
    for pair in pairs:
        pair.note(4, 3, 4, 0.1, 0.02)
    for _ in range(10):
        for pair in pairs:
            pair.note_fused(0, 1, 0.04)
    assert target.fused == pytest.approx(1.0, abs=0.01)
    pairs[0].note(4, 3, 4, 0.5, 0.02)  # a verification behind everybody's fused rounds
    assert 0.1 < pairs[0].state().verify_s < 0.15
    fused_s = target.fused_s
    for _ in range(10):
        for pair in pairs:
            pair.note(4, 3, 4, 0.1, 0.02)
    pairs[0].note_fused(0, 1, 0.01)  # nobody else is fused now
    assert target.fused_s == pytest.approx(fused_s, rel=0.02)


def test_a_pair_is_told_what_windows_the_target_sees_lately() -> None:
    target = Target()
    alone = Pair(StaticWindow(9), target=target)
    alone.choose()
    assert alone.state().mean_window == 0.0, "there is no other"
    others = [Pair(StaticWindow(gamma), target=target) for gamma in (1, 3, 5)]
    for _ in range(30):
        for pair in others:
            pair.choose()
    assert alone.state().mean_window == pytest.approx(4.0, abs=0.3)  # fused rounds have none


@given(values=st.lists(seconds, max_size=40), memory=st.integers(1, 8))
def test_the_least_of_the_last(values: list[float], memory: int) -> None:
    least = Least(memory)
    assert least.value == 0
    for value in values:
        least.note(value)
    if values:
        assert min(values[-2 * memory :]) <= least.value <= min(values[-memory:])


@given(lucky=st.lists(st.integers(1, 5), min_size=1, max_size=600))
def test_the_luck_of_fused_rounds_evens_out(lucky: list[int]) -> None:
    """A target of one pair, whose device has shown how many tokens a round of four drafts gives."""
    target = Target()
    pair = Pair(StaticWindow(4), target=target)
    pair.note(4, 2, 3, 0.1, 0.02)  # two of three that were judged
    expected = expected_tokens(2 / 3, 4)
    for tokens in lucky:
        pair.note_fused(4, tokens, 0.06)
    tokens = 0.06 / target.fused_s
    low, high = min(*lucky, expected), max(*lucky, expected)
    assert low - 1e-9 <= tokens <= high + 1e-9
    if len(lucky) == 1:
        assert tokens == pytest.approx((4 * expected + lucky[0]) / 5)


def test_a_fused_round_that_the_outputs_end_cuts_says_nothing_of_others() -> None:
    pair = Pair(StaticWindow(1))
    pair.note_fused(1, 2, 0.03, cut=True)
    assert pair.state().fused_s > 0, "better than to know nothing"
    pair.note_fused(4, 3, 0.09)
    before = pair.state()
    pair.note_fused(0, 1, 0.02, cut=True)
    assert pair.state() == before


@given(rounds=st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), min_size=1, max_size=200))
def test_a_targets_acceptance_is_a_share(rounds: list[tuple[int, float]]) -> None:
    target = Target()
    for judged, share in rounds:
        target.note(int(share * judged), judged, 0.1)
    assert -1e-9 <= target.alpha <= 1 + 1e-9
    if sum(judged for judged, _ in rounds) <= 512:
        accepted = sum(int(share * judged) for judged, share in rounds)
        assert target.alpha == pytest.approx(accepted / sum(judged for judged, _ in rounds))


def test_what_a_target_saw_long_ago_fades() -> None:
    target = Target()
    for _ in range(200):
        target.note(0, 12, 0.1)
    for _ in range(200):
        target.note(12, 12, 0.1)
    assert target.alpha > 0.95
