from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pair import RECENT_ROUNDS, Pair, Target
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
    pair.note_fused(2, 0.05)
    pair.note_fused(3, 0.05)
    state = pair.state()
    assert (state.acceptance, state.verify_s, state.draft_s) == (0.75, before.verify_s, before.draft_s)
    assert state.fused_s == state.tpot_s == pytest.approx(0.02)
    assert state.previous == 1


def test_pairs_of_one_target_learn_from_each_other() -> None:
    target = Target()
    first, second = Pair(StaticWindow(4), target=target), Pair(StaticWindow(4), target=target)
    first.note(4, 3, 4, 0.1, 0.02)
    first.note_fused(2, 0.05)
    state = second.state()
    assert (state.prior, state.fused_s) == (pytest.approx(0.75), pytest.approx(0.025))
    assert (state.judged, state.verify_s, state.draft_s) == (0, 0, 0)  # the device itself is still unknown
    assert Pair(StaticWindow(4)).state().prior == 0


@given(rounds=st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), min_size=1, max_size=200))
def test_a_targets_acceptance_is_a_share(rounds: list[tuple[int, float]]) -> None:
    target = Target()
    for judged, share in rounds:
        target.note(int(share * judged), judged)
    assert -1e-9 <= target.alpha <= 1 + 1e-9
    if sum(judged for judged, _ in rounds) <= 512:
        accepted = sum(int(share * judged) for judged, share in rounds)
        assert target.alpha == pytest.approx(accepted / sum(judged for judged, _ in rounds))


def test_what_a_target_saw_long_ago_fades() -> None:
    target = Target()
    for _ in range(200):
        target.note(0, 12)
    for _ in range(200):
        target.note(12, 12)
    assert target.alpha > 0.95
