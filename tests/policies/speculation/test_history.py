from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.policies.speculation.arithmetic import FIRST_ALPHA, expected_tokens
from tandem.policies.speculation.history import (
    FIRST_JUDGED,
    MOST_PAIRS,
    PRESENT,
    RECENT_ROUNDS,
    PairHistory,
    PairSnapshot,
    TargetHistory,
    TargetSnapshot,
    WindowedMin,
)
from tandem.policies.speculation.window import StaticWindow, window

seconds = st.floats(0, 1)
rounds = st.lists(
    st.tuples(st.integers(1, 12), st.floats(0, 1), seconds, seconds), min_size=1, max_size=3 * RECENT_ROUNDS
)


@given(rounds=rounds)
def test_the_recent_rounds_count_and_no_others(rounds: list[tuple[int, float, float, float]]) -> None:
    pair = PairHistory(StaticWindow(4))
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
    state = PairHistory(StaticWindow(4), rtt_s=0.02).state()
    assert (state.acceptance, state.tpot_s, state.verify_s, state.draft_s, state.fused_s) == (0, 0, 0, 0, 0)
    assert (state.rtt_s, state.queue, state.previous, state.judged) == (0.02, 0.0, 0, 0)


@given(
    windows=st.lists(st.integers(1, 12), min_size=2, max_size=40),
    pass_s=st.floats(0.001, 0.1),
    share=st.floats(0, 1),
)
@settings(max_examples=40)
def test_a_further_draft_takes_as_long_as_seen(windows: list[int], pass_s: float, share: float) -> None:
    """Between one pass for all drafts and one for each."""
    target = TargetHistory()
    pairs = [PairHistory(StaticWindow(4), target=target) for _ in range(2)]
    for at, gamma in enumerate(windows):  # the second one's device is three times as slow
        slower = 1 + 2 * (at % 2)
        pairs[at % 2].note(gamma, 1, 2, 0.1, slower * pass_s * ((1 - share) * 4 + share * gamma))
    growth = target.draft_growth
    assert 0.0 <= growth <= 1.0
    if share == 1.0:
        assert growth == pytest.approx(1.0)
    restored = TargetHistory()
    restored.adopt(msgspec.convert(msgspec.to_builtins(target.snapshot()), TargetSnapshot))
    assert (restored.draft_growth, restored.verify_growth) == (growth, target.verify_growth)
    assert restored.widened == target.widened


def test_drafts_of_one_pass_are_told_from_drafts_of_one_each() -> None:
    for pass_s, expected in ((lambda gamma: 0.02, 0.1), (lambda gamma: 0.02 * gamma, 1.0)):
        target = TargetHistory()
        pair = PairHistory(StaticWindow(4), target=target)
        assert target.draft_growth == 1.0
        for gamma in (4, 3, 2, 8) * 3:
            pair.note(gamma, 1, 2, 0.1, pass_s(gamma))
        assert target.draft_growth == pytest.approx(expected, abs=0.1)


def test_an_answers_first_round_tells_nothing_of_what_a_further_draft_takes() -> None:
    """The drafter reads the prompt in it, and the verification waits for the target to read it."""
    pair = PairHistory(StaticWindow(4))
    for _ in range(5):
        pair.note(8, 1, 2, 0.3, 0.3, first=True)
        pair.note(2, 1, 2, 0.1, 0.02)
    assert pair.state().widened == 0.0
    pair.note(4, 1, 2, 0.1, 0.02)
    assert pair.state().widened == 4.0
    assert pair.state().verify_s == pytest.approx(0.1), "nor of what a verification takes"


def test_what_a_further_draft_adds_to_a_verification_is_told_from_waiting() -> None:
    """A verification waits for the others' step half of its time, and each draft adds 2 %."""
    target = TargetHistory()
    pair = PairHistory(StaticWindow(4), target=target)
    assert (target.verify_growth, target.widened) == (0.0, 0.0)
    for gamma in (4, 3, 5, 4, 2, 6) * 6:
        pair.note(gamma, 1, 2, 0.1 * (1.0 + 0.02 * (gamma - 4)), 0.01 * gamma)
    state = pair.state()
    assert state.widened > 50
    assert state.verify_growth == pytest.approx(0.02, rel=0.05)


def test_fused_rounds_say_nothing_about_the_device() -> None:
    pair = PairHistory(StaticWindow(1))
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
    target = TargetHistory()
    first, second = PairHistory(StaticWindow(4), target=target), PairHistory(StaticWindow(4), target=target)
    first.note(4, 3, 4, 0.1, 0.02)
    first.note_fused(0, 1, 0.025)
    state = second.state()
    assert (state.prior, state.fused_s) == (pytest.approx(0.6875), pytest.approx(0.025))
    assert (state.judged, state.verify_s, state.draft_s) == (0, 0, 0)  # the device itself is still unknown
    assert PairHistory(StaticWindow(4)).state().prior == 0


def test_what_one_tries_alone_says_little_about_what_all_would_get() -> None:
    target = TargetHistory()
    pairs = [PairHistory(StaticWindow(4), target=target) for _ in range(8)]
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
    target = TargetHistory()
    alone = PairHistory(StaticWindow(9), target=target)
    alone.choose()
    assert alone.state().mean_window == 0.0, "there is no other"
    others = [PairHistory(StaticWindow(gamma), target=target) for gamma in (1, 3, 5)]
    for _ in range(30):
        for pair in others:
            pair.choose()
    assert alone.state().mean_window == pytest.approx(4.0, abs=0.3)  # fused rounds have none


@given(values=st.lists(seconds, max_size=40), memory=st.integers(1, 8))
def test_the_least_of_the_last(values: list[float], memory: int) -> None:
    least = WindowedMin(memory)
    assert least.value == 0
    for value in values:
        least.note(value)
    if values:
        assert min(values[-2 * memory :]) <= least.value <= min(values[-memory:])


@given(lucky=st.lists(st.integers(1, 5), min_size=1, max_size=600))
def test_the_luck_of_fused_rounds_evens_out(lucky: list[int]) -> None:
    """A target of one pair, whose device has shown how many tokens a round of four drafts gives."""
    target = TargetHistory()
    pair = PairHistory(StaticWindow(4), target=target)
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
    pair = PairHistory(StaticWindow(1))
    pair.note_fused(1, 2, 0.03, cut=True)
    assert pair.state().fused_s > 0, "better than to know nothing"
    pair.note_fused(4, 3, 0.09)
    before = pair.state()
    pair.note_fused(0, 1, 0.02, cut=True)
    assert pair.state() == before


@given(rounds=st.lists(st.tuples(st.integers(1, 12), st.floats(0, 1)), min_size=1, max_size=200))
def test_a_targets_acceptance_is_a_share(rounds: list[tuple[int, float]]) -> None:
    target = TargetHistory()
    for judged, share in rounds:
        target.note(int(share * judged), judged, 0.1)
    assert -1e-9 <= target.alpha <= 1 + 1e-9
    if sum(judged for judged, _ in rounds) <= 512:
        accepted = sum(int(share * judged) for judged, share in rounds)
        total = sum(judged for judged, _ in rounds)
        prior = FIRST_JUDGED * FIRST_ALPHA  # a few rounds of bad luck do not decide
        assert target.alpha == pytest.approx((prior + accepted) / (FIRST_JUDGED + total))


def test_what_a_target_saw_long_ago_fades() -> None:
    target = TargetHistory()
    for _ in range(200):
        target.note(0, 12, 0.1)
    for _ in range(200):
        target.note(12, 12, 0.1)
    assert target.alpha > 0.95


def test_pairs_that_have_gone_do_not_count() -> None:
    """A device that is started again and again is a new pair each time."""
    target = TargetHistory()
    for _ in range(50):
        restarted = PairHistory(StaticWindow(4), target=target)
        for _ in range(PRESENT // 4):
            restarted.note(4, 3, 4, 0.1, 0.02)
    assert target.pairs <= 6
    for _ in range(PRESENT + MOST_PAIRS):
        restarted.note(4, 3, 4, 0.1, 0.02)
    assert target.pairs == 1
    restarted.note_fused(0, 1, 0.02)
    assert restarted.state().fused_share == 0.5, "it is alone"


def test_pairs_that_take_part_now_and_then_do() -> None:
    target = TargetHistory()
    often, seldom = (PairHistory(StaticWindow(4), target=target) for _ in range(2))
    for turn in range(3 * PRESENT):
        often.note(4, 3, 4, 0.1, 0.02)
        if turn % (PRESENT // 2) == 0:
            seldom.note(4, 3, 4, 0.1, 0.02)
        assert target.pairs == 2
    for _ in range(2 * PRESENT):
        often.note(4, 3, 4, 0.1, 0.02)
    assert target.pairs == 1
    seldom.choose()
    assert target.pairs == 2, "and whoever comes back does again"


def test_there_is_no_end_to_how_many_may_take_part() -> None:
    target = TargetHistory()
    pairs = [PairHistory(StaticWindow(4), target=target) for _ in range(500)]
    for _ in range(3):
        for pair in pairs:
            pair.note(4, 3, 4, 0.1, 0.02)
    assert MOST_PAIRS <= target.pairs <= 2 * MOST_PAIRS
    assert len(target.snapshot().present) <= 2 * MOST_PAIRS


def play(pairs: list[PairHistory], turns: list[tuple[int, int, float, float]]) -> list[int]:
    """Each turn a pair chooses and makes its round; what was chosen."""
    chosen = []
    for which, accepted, verify_s, draft_s in turns:
        pair = pairs[which]
        gamma = pair.choose()
        chosen.append(gamma)
        if gamma > 1:
            accepted = min(accepted, gamma)
            pair.note(gamma, accepted, accepted + 1, verify_s, draft_s)
        elif gamma == 0:
            pair.note_alone(32 + accepted, verify_s)
        else:
            pair.note_fused(4, 1 + min(accepted, 4), verify_s, cut=accepted == 12)
    return chosen


turns = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.floats(1e-3, 1), st.floats(1e-4, 0.3)), max_size=60
)


@pytest.mark.parametrize("name", list(window))
@given(before=turns, after=turns)
def test_another_process_goes_on_as_this_one_would(
    name: str, before: list[tuple[int, int, float, float]], after: list[tuple[int, int, float, float]]
) -> None:
    """Three pairs of a target, taken elsewhere over the wire: every later decision is the same."""
    target, elsewhere = TargetHistory(), TargetHistory()
    here = [PairHistory(window.create(name), 0.03, target=target) for _ in range(3)]
    play(here, before)
    there = [PairHistory(window.create(name), 0.03, target=elsewhere) for _ in range(3)]
    for pair, copy in zip(here, there, strict=True):
        snapshot = pair.snapshot()
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=PairSnapshot) == snapshot
        copy.adopt(snapshot)
        assert copy.snapshot() == snapshot
        assert copy.state() == pair.state()
    assert play(there, after) == play(here, after)
    assert [pair.snapshot() for pair in there] == [pair.snapshot() for pair in here]


def test_who_notes_anothers_rounds_knows_as_much() -> None:
    """The router's copy of a pair: it is told the windows, the rounds and what the policy remembers."""
    here, router = (PairHistory(window.create("dynamic"), target=TargetHistory()) for _ in range(2))
    for accepted in (4, 5, 6, 1, 0):
        gamma = here.choose()
        router.note_window(gamma)
        for pair in (here, router):
            pair.note(gamma, min(accepted, gamma), min(accepted, gamma) + 1, 0.1, 0.02)
    assert router.snapshot().memory == (), "its policy was never asked"
    router.memory = here.memory
    assert router.snapshot() == here.snapshot()


def test_only_who_has_seen_more_of_a_pair_is_believed() -> None:
    one, other = PairHistory(window.create("dynamic")), PairHistory(window.create("dynamic"))
    for pair, rounds in ((one, 3), (other, 5)):
        for _ in range(rounds):
            pair.note(pair.choose(), 1, 2, 0.1, 0.02)
    before = other.snapshot()
    other.adopt(one.snapshot())
    assert other.snapshot() == before
    one.adopt(before)
    assert one.snapshot() == before


def test_rounds_of_every_kind_are_seen() -> None:
    pair = PairHistory(StaticWindow(4))
    pair.note(4, 3, 4, 0.1, 0.02)
    pair.note_fused(2, 2, 0.02)
    pair.note_alone(5, 0.1)
    assert pair.seen == pair.target.seen == 3


def test_one_round_by_hand() -> None:
    pair = PairHistory(StaticWindow(4), rtt_s=0.01)
    pair.note(4, 3, 4, 0.02, 0.2)
    state = pair.state()
    assert (state.acceptance, state.alpha, state.judged, state.own) == (0.75, 0.75, 4, 1.0)
    assert (state.verify_s, state.draft_s) == (pytest.approx(0.02), pytest.approx(0.05))
    assert (state.tpot_s, state.drafted) == (pytest.approx(0.005), pytest.approx(4.0))


def test_a_new_pair_relies_on_a_target_that_has_made_four_rounds() -> None:
    target = TargetHistory()
    pair = PairHistory(StaticWindow(4), target=target)
    shared_s = []
    for _ in range(5):
        shared_s.append(target.new_pair(0.03).shared_verify_s)
        pair.note(4, 3, 4, 0.02, 0.2)
    assert shared_s == [0.0, 0.0, 0.0, 0.0, pytest.approx(0.02)]
    newcomer = target.new_pair(0.03)
    assert (newcomer.rtt_s, newcomer.tpot_s, newcomer.acceptance, newcomer.previous) == (0.03, 0.0, 0.0, 0)
    assert newcomer.prior == target.alpha
