"""A contest's books: what it teaches the windows, what it books to the budget, and where an answer may go."""

from __future__ import annotations

import pytest

from policies.contest import Contest, Known, Payer
from policies.cost import Costs, PerToken
from policies.dispatch import BOTH, DispatchState, Side, Start
from policies.migration import migration
from policies.pace import Pace
from policies.samples import Latencies, Outputs

SERVER, DEVICE = Side.SERVER, Side.DEVICE
DEVICE_CHEAPER = Costs(PerToken(1.0, 2.0), PerToken(0.1, 0.2), 1.0)  # the server is constrained
DEVICE_DEARER = Costs(PerToken(1.0, 2.0), PerToken(3.0, 4.0), 1.0)  # the device is
SERVER_DECODES_CHEAPER = Costs(
    PerToken(5.0, 0.1), PerToken(0.2, 1.0), 1.0
)  # and is constrained by its prefill


class Fixed:
    """A dispatch policy that starts both; asked: what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[DispatchState] = []

    def choose(self, state: DispatchState) -> Start:
        self.asked.append(state)
        return BOTH


def payer() -> Payer:
    return Payer(Fixed(), migration.create("buffered"))


def known() -> Known:
    return Known(Latencies(), Pace(0.0, 0.01), Outputs())


def contest(
    who: Payer, what: Known, costs: Costs = DEVICE_CHEAPER, rate: float = 0.0, **own: float
) -> Contest:
    return Contest(100, 1000, rate, costs, who, what, coin=0.5, **own)


def test_times_and_lengths_are_learnt():
    who, what = payer(), known()
    race = contest(who, what)
    race.began(SERVER)
    race.began(DEVICE)
    race.first_token(SERVER, 100, 0.7)
    race.stopped(DEVICE, 0.9)
    assert list(what.ttft) == [0.7]
    assert who.lengths.total == 100
    race = contest(who, what)
    race.began(SERVER)
    race.began(DEVICE)
    race.first_token(DEVICE, 100, 2.0)
    race.stopped(SERVER, 2.0)
    assert len(what.ttft) == 2
    assert max(what.ttft) >= 2.0
    assert what.pace.step_s(100) == pytest.approx(2.0)


@pytest.mark.parametrize(("costs", "constrained"), [(DEVICE_CHEAPER, SERVER), (DEVICE_DEARER, DEVICE)])
@pytest.mark.parametrize("took_part", [True, False])
def test_what_the_constrained_one_took_in_is_booked_once(costs: Costs, constrained: Side, took_part: bool):
    who = payer()
    race = contest(who, known(), costs)
    other = SERVER if constrained is DEVICE else DEVICE
    race.began(other)
    if took_part:
        race.began(constrained)
    race.first_token(other, 100, 0.5)
    race.first_token(other, 130, 0.5)  # of a hand-over, later
    assert (who.budgets[constrained].requests, who.budgets[constrained].used) == (1, float(took_part))
    assert who.budgets[other].requests == 0


def test_a_budget_of_its_own_is_planned_with():
    who = payer()
    contest(who, known(), share=0.125)
    assert isinstance(who.dispatch, Fixed)
    assert who.dispatch.asked[0].budget == 0.125


def test_the_answer_goes_where_decoding_is_cheaper():
    race = contest(payer(), known())
    assert race.hand_over(SERVER, 1, 0.0)
    assert not race.hand_over(DEVICE, 1, 0.0)
    dearer = contest(payer(), known(), DEVICE_DEARER)
    assert dearer.hand_over(DEVICE, 1, 0.0)
    assert not dearer.hand_over(SERVER, 1, 0.0)


def test_it_goes_when_the_reader_has_enough():
    race = contest(payer(), known(), rate=10.0)  # the device takes in 101 … tokens at 0.01 s: B is 11 or more
    race.delivered(10, 0.0)
    assert not race.hand_over(SERVER, 10, 0.0)
    race.delivered(2, 0.0)
    assert race.hand_over(SERVER, 12, 0.0)
    assert not race.hand_over(SERVER, 12, 1.0), "by then it has read ten of them"


def test_patience_is_some_times_what_is_to_be_expected():
    what = known()
    race = contest(payer(), what)
    assert race.patience_s(SERVER, 0) == float("inf"), "nothing is known of it"
    what.ttft.note(0.1)
    assert race.patience_s(SERVER, 0) == 1.0
    what.ttft.note(2.0)
    assert race.patience_s(SERVER, 0) == 6.0
    assert race.patience_s(DEVICE, 100) == pytest.approx(3 * 2.0)


def test_it_does_not_go_beyond_a_budget():
    what = known()
    what.ttft.note(0.1)
    race = contest(payer(), what, SERVER_DECODES_CHEAPER)
    race.began(DEVICE)
    assert not race.hand_over(DEVICE, 1, 0.0), "the server has not been paid for"
    cheap = Costs(PerToken(0.2, 0.1), PerToken(0.15, 1.0), 1.0)
    raced = contest(payer(), what, cheap)
    raced.began(DEVICE)
    assert not raced.hand_over(DEVICE, 1, 0.0)
    raced.began(SERVER)
    assert raced.hand_over(DEVICE, 1, 0.0)
