from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.rounds import (
    BURST,
    FUSED_WINDOW,
    AloneRound,
    DraftingRound,
    DraftSource,
    FusedRound,
    PairRound,
    RoundPlan,
    Rounds,
    teach,
)
from tandem.policies.speculation.window import StaticWindow, WindowState


@dataclass
class Counted:
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    fused_rounds: int = 0
    fused_drafted: int = 0
    single_rounds: int = 0
    switches: int = 0
    alone: int = 0


class Script:
    """A window policy that chooses as written down, again and again."""

    def __init__(self, windows: list[int]) -> None:
        self.windows, self.at = windows, 0

    def choose(self, state: WindowState) -> int:
        self.at += 1
        return self.windows[(self.at - 1) % len(self.windows)]


def rounds(windows: list[int], tokens: int = 100, **options: object) -> tuple[Rounds, Counted, PairHistory]:
    counted, pair = Counted(), PairHistory(Script(windows))
    given_ = {"window": None, "distributed": True, "helper": True, **options}
    return Rounds(pair, tokens, counts=counted, **given_), counted, pair  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "chosen", "plan"),
    [
        ({}, 5, RoundPlan(DraftSource.DEVICE, 5)),
        ({}, 1, RoundPlan(DraftSource.CLOUD, FUSED_WINDOW)),
        ({"helper": False}, 1, RoundPlan(DraftSource.NOBODY, FUSED_WINDOW)),
        ({"window": 1}, 7, RoundPlan(DraftSource.DEVICE, 1)),
        ({"distributed": False}, 5, RoundPlan(DraftSource.CLOUD, 5)),
        ({"distributed": False}, 1, RoundPlan(DraftSource.CLOUD, 1)),
        ({}, 0, RoundPlan(DraftSource.NOBODY, 0, BURST)),
        ({"distributed": False}, 0, RoundPlan(DraftSource.NOBODY, 0, BURST)),
    ],
)
def test_who_drafts(options: dict[str, object], chosen: int, plan: RoundPlan) -> None:
    made, _, _ = rounds([chosen], **options)
    assert made.next(1) == plan


@given(
    windows=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    tokens=st.integers(1, 60),
    fixed=st.none() | st.integers(1, 12),
    distributed=st.booleans(),
    helper=st.booleans(),
    accept=st.lists(st.integers(0, 12), min_size=1, max_size=8),
)
def test_an_answer_of_any_length_is_never_overshot(
    windows: list[int],
    tokens: int,
    fixed: int | None,
    distributed: bool,
    helper: bool,
    accept: list[int],
) -> None:
    made, counted, _ = rounds(
        windows, tokens, window=fixed, distributed=distributed, helper=helper or not distributed
    )
    sent = number = 1
    while sent < tokens:
        drafter, gamma, _ = made.next(sent)
        drafted = 0 if drafter is DraftSource.NOBODY else gamma
        assert 0 <= drafted < tokens - sent, "the target adds a token of its own"
        accepted = min(drafted, accept[number % len(accept)])
        made.done(drafted, accepted, accepted + 1, 0.01, 0.02)
        sent, number = sent + accepted + 1, number + 1
    assert sent == tokens
    assert counted.rounds == number - 1
    assert counted.drafted == sum(round_.drafted for round_ in made.learnt)
    assert counted.fused_rounds == sum(isinstance(round_, FusedRound) for round_ in made.learnt)
    if fixed is not None or not distributed:
        assert counted.fused_rounds == counted.switches == 0


def test_switches_are_counted_from_the_second_round_on() -> None:
    made, counted, _ = rounds([1, 1, 4, 1])
    for _ in range(4):
        made.next(1)
        made.done(2, 1, 2, 0.01, 0.02)
    assert counted.switches == 2


def test_a_round_that_the_outputs_end_has_cut_says_so() -> None:
    made, _, _ = rounds([1], tokens=4)
    assert made.next(1) == RoundPlan(DraftSource.CLOUD, 2)
    made.done(2, 2, 3, 0.01, 0.02)
    assert made.learnt == [FusedRound(2, 3, pytest.approx(0.03), True)]


def test_another_process_learns_the_same() -> None:
    made, counted, pair = rounds([3, 1, 5, 0, 2])
    for n in range(40):
        drafter, gamma, alone = made.next(1)
        if alone:
            made.decoded(alone + 1, 0.03 * n)
            continue
        drafted = gamma if drafter is not DraftSource.NOBODY else 0
        made.done(drafted, n % (drafted + 1), n % (drafted + 1) + 1, 0.01 * n, 0.02 * n)
        made.compared(n % 3 == 0, gamma, n % (drafted + 1))
    assert {type(round_) for round_ in made.learnt} == {PairRound, FusedRound, AloneRound, DraftingRound}
    assert counted.alone == 8 * (BURST + 1)
    other = PairHistory(StaticWindow())
    teach(other, made.learnt)
    ours, theirs = pair.state(), other.state()
    for field in ("acceptance", "verify_s", "draft_s", "fused_s", "alpha", "judged", "prior", "alone_s"):
        assert getattr(theirs, field) == pytest.approx(getattr(ours, field)), field
    assert other.drafting.state == pair.drafting.state
    assert min(other.drafting.state) > 0


def test_the_target_stays_alone_until_there_is_to_be_a_draft() -> None:
    chosen, _, _ = rounds([0, 0, 3, 2])
    assert chosen.next(1) == RoundPlan(DraftSource.NOBODY, 0, BURST)
    assert chosen.stays_alone(40)
    assert not chosen.stays_alone(80)
    assert chosen.next(80).gamma == 3
    assert chosen.next(84).gamma == 2


def test_a_round_is_put_off_while_its_drafter_begins_and_cut_off_where_the_output_ends() -> None:
    chosen, counted, _ = rounds([3, 0], tokens=100)
    plan = chosen.next(1)
    assert chosen.put_off(plan) == RoundPlan(DraftSource.NOBODY, 0, BURST)
    chosen.decoded(BURST, 0.1)
    assert not chosen.stays_alone(97)
    assert chosen.next(97) == RoundPlan(DraftSource.DEVICE, 2)
    assert chosen.next(98).alone == BURST  # the round was asked for once
    assert counted.alone == BURST


class Asked(PairHistory):
    """behind: what the policy was asked for."""

    def __init__(self) -> None:
        super().__init__(StaticWindow(5))
        self.behind: list[int] = []

    def choose(self, behind: int = 0) -> int:
        self.behind.append(behind)
        return super().choose(behind)


def test_the_policy_knows_how_far_behind_the_drafter_is() -> None:
    pair = Asked()
    made = Rounds(pair, 100, window=None, distributed=True, helper=True, counts=Counted())
    made.next(1)
    made.next(1, 7)
    assert not made.stays_alone(1)
    made.next(1, 9)  # decided already
    assert not made.stays_alone(1, 3)
    assert pair.behind == [0, 7, 0, 3]


@pytest.mark.parametrize(("fixed", "window"), [(None, 5), (3, 0)])
def test_a_round_says_whose_choice_its_window_was(fixed: int | None, window: int) -> None:
    made, counted, _ = rounds([5], window=fixed)
    made.next(1)
    made.done(3, 2, 3, 0.25, 0.5)
    made.done(3, 2, 3, 0.25, 0.5, 4)
    first, second = (
        PairRound(3, 2, 3, 0.5, 0.25, 0, window, first=True),
        PairRound(3, 2, 3, 0.5, 0.25, 4, window),
    )
    assert made.learnt == [first, second]
    assert (counted.rounds, counted.drafted, counted.accepted, counted.single_rounds) == (2, 6, 4, 0)


def test_at_the_outputs_end_the_target_adds_its_own_token_alone() -> None:
    made, counted, _ = rounds([5], tokens=10)
    assert made.next(8) == RoundPlan(DraftSource.DEVICE, 1)
    assert made.next(9) == RoundPlan(DraftSource.NOBODY, 0)
    made.done(0, 0, 1, 0.0, 0.1)
    assert (counted.rounds, counted.single_rounds, made.learnt) == (1, 1, [])


@pytest.mark.parametrize(
    ("helper", "drafted", "cut"), [(True, 3, True), (True, 4, False), (False, 0, False), (False, 3, False)]
)
def test_a_fused_round_of_fewer_drafts_was_cut_by_the_outputs_end(
    helper: bool, drafted: int, cut: bool
) -> None:
    made, counted, _ = rounds([1], helper=helper)
    made.next(1, 0)
    made.done(drafted, drafted, drafted + 1, 0.1, 0.2)
    assert made.learnt == [FusedRound(drafted, drafted + 1, pytest.approx(0.1 + 0.2), cut)]
    assert (counted.rounds, counted.fused_rounds, counted.fused_drafted) == (1, 1, drafted)


def test_fused_rounds_have_four_drafts() -> None:
    assert FUSED_WINDOW == 4
