from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.pair import RECENT_ROUNDS, Pair
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
