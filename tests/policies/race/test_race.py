"""A race's books: what it teaches, what it books to the budget, and where an answer may go."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.cost import MAINS_USD_PER_J, PerToken
from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.estimators.windows import Latencies, Outputs
from tandem.policies.race.budget import Budget
from tandem.policies.race.costs import Costs
from tandem.policies.race.dispatch import (
    BOTH,
    DEVICE_ONLY,
    NEVER,
    SERVER_ONLY,
    DispatchState,
    Side,
    Start,
    dispatch,
)
from tandem.policies.race.migration import migration
from tandem.policies.race.race import STALLED_S, Race, RaceAccount, RaceHistory, RaceRequest

SERVER, DEVICE = Side.SERVER, Side.DEVICE
DEVICE_CHEAPER = Costs(PerToken(1.0, 2.0), PerToken(0.1, 0.2), 1.0)  # the server is constrained
DEVICE_DEARER = Costs(PerToken(1.0, 2.0), PerToken(3.0, 4.0), 1.0)  # the device is
SERVER_DECODES_CHEAPER = Costs(
    PerToken(5.0, 0.1), PerToken(0.2, 1.0), 1.0
)  # and is constrained by its prefill


def other(side: Side) -> Side:
    return SERVER if side is DEVICE else DEVICE


class Fixed:
    """A dispatch policy that starts both; asked: what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[DispatchState] = []

    def choose(self, state: DispatchState) -> Start:
        self.asked.append(state)
        return BOTH


def account(share: float = 1.0, policy: str = "buffered") -> RaceAccount:
    return RaceAccount(Fixed(), migration.create(policy), {side: Budget(share) for side in Side})


def history() -> RaceHistory:
    return RaceHistory(Latencies(), StepTimeModel(0.0, 0.01), Outputs())


def a_race(
    who: RaceAccount,
    known: RaceHistory,
    costs: Costs = DEVICE_CHEAPER,
    rate: float = 0.0,
    share: float | None = None,
) -> Race:
    return Race(RaceRequest(100, 1000, rate, share), costs, who, known, coin=0.5)


def test_times_and_lengths_are_learnt():
    who, known = account(), history()
    race = a_race(who, known)
    race.took_in(SERVER, 100)
    race.took_in(DEVICE, 100)
    race.first_token(SERVER, 100, 0.7)
    race.stopped(DEVICE, 0.9)
    assert list(known.ttft) == [0.7]
    assert who.lengths.total == 100
    race = a_race(who, known)
    race.took_in(SERVER, 100)
    race.took_in(DEVICE, 100)
    race.first_token(DEVICE, 100, 2.0)
    race.stopped(SERVER, 2.0)
    assert len(known.ttft) == 2
    assert max(known.ttft) >= 2.0
    assert known.prefill.step_s(100) == pytest.approx(2.0)


def test_times_to_first_token_are_those_from_the_requests_beginning():
    known = history()
    race = a_race(account(), known, SERVER_DECODES_CHEAPER)
    race.took_in(DEVICE, 100)
    race.first_token(DEVICE, 100, 0.5)
    race.took_in(SERVER, 130)  # a hand-over: it may hold the prompt already
    race.first_token(SERVER, 130, 0.1)
    assert list(known.ttft) == []


@pytest.mark.parametrize(("costs", "constrained"), [(DEVICE_CHEAPER, SERVER), (DEVICE_DEARER, DEVICE)])
@pytest.mark.parametrize("took_part", [True, False])
def test_what_the_constrained_one_takes_in_is_booked_as_often_as_it_does(
    costs: Costs, constrained: Side, took_part: bool
):
    who = account()
    race = a_race(who, history(), costs)
    budget = who.budgets[constrained]
    race.took_in(other(constrained), 100)
    if took_part:
        race.took_in(constrained, 100)
    race.first_token(other(constrained), 100, 0.5)
    race.took_in(other(constrained), 120)  # of no interest
    race.took_in(constrained, 130)  # a fail-over with 30 tokens of the answer
    race.first_token(constrained, 130, 0.5)
    assert (budget.tokens, budget.spent) == (100, 100), "as the plan expects"
    race.over({SERVER: 0, DEVICE: 0})
    assert (budget.tokens, budget.spent) == (100, 100 * took_part + 130)
    assert who.budgets[other(constrained)].tokens == 0


@pytest.mark.parametrize(
    ("costs", "constrained", "alone"),
    [(DEVICE_CHEAPER, SERVER, DEVICE_ONLY), (DEVICE_DEARER, DEVICE, SERVER_ONLY)],
)
def test_where_the_budget_has_no_room_the_constrained_one_does_not_start(
    costs: Costs, constrained: Side, alone: Start
):
    """Half of two prompts is one. It may go on with an answer only where that was reserved, too."""
    who = account(0.5)
    first, second, third = (a_race(who, history(), costs) for _ in range(3))
    assert [race.start for race in (first, second, third)] == [alone, BOTH, alone]
    assert (first.limit, second.limit) == (0, 100)
    assert (first.starts(0), second.starts(0), second.starts(1)) == (alone, BOTH, alone)
    assert second.may_start(constrained, 0)
    second.took_in(constrained, 100)
    assert second.starts(0) == alone, "it was taken in once"
    for race in (first, second):
        assert race.may_start(other(constrained), 1000)


prompts = st.integers(1, 300)
events = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "new",
                "took_in",
                "first_token",
                "resumed",
                "stopped",
                "finish",
                "keep_loser",
                "prepare",
                "rest_s",
                "hand_over",
            ]
        ),
        st.integers(0, 9),
        st.sampled_from(Side),
        prompts,
    ),
    max_size=60,
)
VALUES = (0.0, 1e-300, 0.3, 1.0, 1e9)
costs_ = st.builds(
    Costs,
    server=st.builds(PerToken, st.sampled_from(VALUES), st.sampled_from(VALUES)),
    device=st.builds(PerToken, st.sampled_from(VALUES), st.sampled_from(VALUES)),
    exchange_rate=st.sampled_from([0.0, MAINS_USD_PER_J, 1.0, 1e9]),
)


@pytest.mark.parametrize(("dispatched", "migrated"), list(product(dispatch, migration)))
@given(
    events=events,
    costs=costs_,
    rate=st.sampled_from([0.0, 1e-9, 5.0, 1e9]),
    most=st.sampled_from([0, 1, 40, 100_000]),
    seen=st.lists(st.sampled_from([0.0, 0.4, 1e6]), max_size=3),
    pace=st.sampled_from([(0.0, 0.0), (0.0, 0.01), (1e6, 1e3)]),
    share=st.sampled_from([None, 0.0, 0.5, 1.0]),
    coin=st.sampled_from([0.0, 0.3, math.nextafter(1, 0)]),
)
def test_whatever_happens_the_books_are_right_and_decisions_make_sense(
    dispatched, migrated, events, costs, rate, most, seen, pace, share, coin
):
    """Any number of races of one account, in any order of events, with anything known of the two or nothing."""
    who = RaceAccount(dispatch.create(dispatched), migration.create(migrated))
    known = RaceHistory(Latencies(seen), StepTimeModel(*pace), Outputs())
    budget = who.budgets[costs.constrained]
    races: list[Race] = []
    prompts: list[int] = []
    taken_in: list[int] = []
    now_s = 0.0
    for event, which, side, tokens in [("new", 0, SERVER, 7), *events]:
        now_s += 0.1
        if event == "new":
            races.append(Race(RaceRequest(tokens, most, rate, share), costs, who, known, coin))
            prompts.append(tokens)
            taken_in.append(0)
            start = races[-1].start
            assert min(start.server_s, start.device_s) == 0.0
            started = start.server_s if costs.constrained is SERVER else start.device_s
            assert started == NEVER or tokens <= races[-1].limit
            assert budget.reserved <= budget.allowed or share == 1.0
            continue
        at = which % len(races)
        race = races[at]
        dear = race.prices[side].decode > race.prices[other(side)].decode
        match event:
            case "took_in":
                race.took_in(side, tokens)
                taken_in[at] += tokens * (side is costs.constrained)
            case "first_token":
                race.first_token(side, tokens, 0.2)
                race.delivered(1, now_s)
            case "resumed":
                race.resumed(side, tokens, 0.1)
            case "stopped":
                race.stopped(side, 0.3)
            case "finish":
                race.finish()
            case "keep_loser":
                assert not race.keep_loser(side, 0.0) or not dear, "nothing is kept where decoding is dearer"
            case "prepare":
                assert not race.prepare(side, now_s) or not (dear or side is costs.constrained)
            case "rest_s":
                assert race.rest_s(side, tokens, now_s) == 0.0 or (dear and rate)
            case "hand_over":
                moves = race.hand_over(side, tokens, now_s)
                assert not moves or dear, "nothing goes where decoding is dearer"
                spends = moves and other(side) is costs.constrained
                assert not spends or taken_in[at] + tokens <= race.limit
                assert not moves or not (
                    other(side) is SERVER and rate and not (len(known.ttft) or len(known.resumed))
                )
                assert race.patience_s(side, tokens) >= STALLED_S
    for race, spent in zip(races, taken_in, strict=True):
        race.over({costs.constrained: spent})
    assert budget.spent == budget.reserved == sum(taken_in)
    assert budget.tokens == sum(prompts)


def test_a_budget_of_its_own_is_planned_with():
    who = account()
    a_race(who, history(), share=0.125)
    assert isinstance(who.dispatch, Fixed)
    assert who.dispatch.asked[0].budget == 0.125


def test_the_answer_goes_where_decoding_is_cheaper():
    race = a_race(account(), history())
    assert race.hand_over(SERVER, 1, 0.0)
    assert not race.hand_over(DEVICE, 1, 0.0)
    dearer = a_race(account(), history(), DEVICE_DEARER)
    assert dearer.hand_over(DEVICE, 1, 0.0)
    assert not dearer.hand_over(SERVER, 1, 0.0)
    dearer.prices = {DEVICE: PerToken(0.0, 0.0), SERVER: PerToken(1.0, 2.0)}  # somebody plugs it in
    dearer.took_in(DEVICE, 100)
    assert dearer.hand_over(SERVER, 1, 0.0)


@pytest.mark.parametrize("name", ["device", "stochastic"])
def test_a_server_that_was_never_seen_gets_no_answer_that_is_read(name: str):
    """The server's time to first token is unknown, so no buffer is large enough."""
    who = RaceAccount(dispatch.create(name), migration.create("buffered"))
    race = Race(RaceRequest(100, 1000, 5.0, share=1.0), DEVICE_DEARER, who, history(), coin=0.1)
    assert race.start == Start(NEVER, 0.0)
    race.took_in(DEVICE, 100)
    race.first_token(DEVICE, 100, 0.5)
    race.took_in(SERVER, 100)
    race.delivered(50, 0.0)
    assert not race.hand_over(DEVICE, 50, 0.0)


def test_it_goes_when_the_reader_has_enough():
    race = a_race(
        account(), history(), rate=10.0
    )  # the device takes in 101 … tokens at 0.01 s: B is 11 or more
    race.delivered(10, 0.0)
    assert not race.hand_over(SERVER, 10, 0.0)
    race.delivered(2, 0.0)
    assert race.hand_over(SERVER, 12, 0.0)
    assert not race.hand_over(SERVER, 12, 1.0), "by then it has read ten of them"


def lost(known: RaceHistory, rate: float, max_tokens: int = 1000, prompt: int = 100) -> Race:
    """A race that the device, where decoding is cheaper, has lost."""
    race = Race(RaceRequest(prompt, max_tokens, rate), DEVICE_CHEAPER, account(), known, coin=0.5)
    race.took_in(SERVER, prompt)
    race.took_in(DEVICE, prompt)
    race.first_token(SERVER, prompt, 0.2)
    return race


def test_a_loser_keeps_the_prompt_where_the_answer_will_go_there():
    """128 tokens are expected. A device that takes 0.01 s a token needs no buffer to speak of, and what a token saves
    is 1.8, far above 0.1 for each that is taken in. One that takes a second a token can't catch up with the reader."""
    assert lost(history(), rate=5.0).keep_loser(DEVICE, 0.0)
    slow = RaceHistory(Latencies(), StepTimeModel(0.0, 1.0), Outputs())
    assert not lost(slow, rate=5.0).keep_loser(DEVICE, 0.0)
    assert not lost(history(), rate=5.0).keep_loser(SERVER, 0.0), "it won, and it is dearer"
    never = Race(RaceRequest(100, 1000, 5.0), DEVICE_CHEAPER, account(), history(), coin=0.5)
    assert not never.keep_loser(DEVICE, 0.0), "it holds nothing"


def test_what_the_rest_of_the_prompt_costs_counts_against_keeping_it():
    """DiSCo's equation (4): of two tokens one remains after the first; it saves 1.8, that is 18 tokens of prefill."""
    assert lost(history(), rate=0.0, max_tokens=2).keep_loser(DEVICE, 0.0, left=16)
    assert not lost(history(), rate=0.0, max_tokens=2).keep_loser(DEVICE, 0.0, left=17)
    assert not lost(history(), rate=0.0, max_tokens=1).keep_loser(DEVICE, 0.0), "nothing remains"


def test_what_is_kept_makes_the_way_shorter_and_cheaper():
    """The eight tokens that remain save 14.4, which pays for the two that were sent, but not for a prompt of 1,000 at
    0.1 each. And the reader needs one token before them while the device takes in those two, but 101 for the prompt."""
    cold, kept = (lost(history(), rate=10.0, max_tokens=10, prompt=1000) for _ in range(2))
    assert kept.keep_loser(DEVICE, 0.0)
    for race in (cold, kept):
        race.delivered(2, 0.0)
        assert not race.hand_over(SERVER, 2, 0.0)
    kept.first_token(DEVICE, 1000, 10.0)
    assert kept.hand_over(SERVER, 2, 0.0), "from now on it holds the prompt"
    assert kept.patience_s(DEVICE, 2) < cold.patience_s(DEVICE, 2)
    assert not cold.hand_over(SERVER, 2, 0.0)
    kept.stopped(DEVICE, 11.0)
    assert not kept.hand_over(SERVER, 2, 0.0), "it had to let go of it"


def prepared(known: RaceHistory, rate: float = 5.0, costs: Costs = DEVICE_CHEAPER) -> Race:
    return Race(RaceRequest(100, 1000, rate), costs, account(policy="prepared"), known, coin=0.5)


def test_a_target_that_did_not_race_takes_in_the_prompt_beforehand():
    """The device takes in 100 tokens in a second; the reader of 5 tokens/s needs a part of one when it is done."""
    race = prepared(history())
    race.took_in(SERVER, 100)
    race.first_token(SERVER, 100, 0.2)
    race.delivered(1, 0.2)
    assert not race.prepare(SERVER, 0.2), "it won, and it is dearer"
    assert race.prepare(DEVICE, 0.2)
    assert not race.hand_over(SERVER, 1, 0.2), "also before it says that it has begun"
    race.took_in(DEVICE, 101)
    race.delivered(20, 0.3)
    assert not race.hand_over(SERVER, 21, 0.3), "nobody waits for a prompt"
    race.first_token(DEVICE, 101, 1.0)
    assert race.hand_over(SERVER, 21, 1.2)


@pytest.mark.parametrize(
    ("policy", "rate", "costs"),
    [
        ("buffered", 5.0, DEVICE_CHEAPER),
        ("prepared", 0.0, DEVICE_CHEAPER),  # nobody reads along: the answer can move at once
        ("prepared", 5.0, DEVICE_DEARER),
        ("prepared", 5.0, Costs(PerToken(1.0, 2.0), PerToken(300.0, 0.2), 1.0)),  # the prompt costs too much
    ],
)
def test_where_it_does_not_help_nothing_is_prepared(policy: str, rate: float, costs: Costs):
    race = Race(RaceRequest(100, 1000, rate), costs, account(policy=policy), history(), coin=0.5)
    race.took_in(SERVER, 100)
    race.first_token(SERVER, 100, 0.2)
    assert not race.prepare(DEVICE, 0.2)


def test_the_constrained_one_prepares_nothing_that_the_budget_was_not_planned_for():
    race = prepared(history(), costs=SERVER_DECODES_CHEAPER)
    race.took_in(DEVICE, 100)
    race.first_token(DEVICE, 100, 1.0)
    assert not race.prepare(SERVER, 1.0)


def test_the_winner_rests_while_the_prompt_is_taken_in():
    """The device needs 0.01 s a token; the server, 0.1 s to go on. Of the first token, 0.2 s long for its reader, 0.1 s
    remain for it when the server goes on, and 0.02 s for a migration of two."""
    known = history()
    known.resumed.note(0.05)
    race = prepared(known)
    for side in Side:
        race.took_in(side, 100)
    race.first_token(SERVER, 100, 0.2)
    race.delivered(1, 0.2)
    assert race.rest_s(SERVER, 1, 0.2) == 0.0, "nothing is kept yet"
    assert race.keep_loser(DEVICE, 0.2, elapsed_s=0.2)
    assert race.rest_s(SERVER, 1, 0.2) == pytest.approx(0.2 - 0.05 - 0.01)
    assert race.rest_s(SERVER, 1, 0.3) == 0.0, "a shorter rest than the way back is none"
    race.delivered(2, 0.35)
    assert race.rest_s(SERVER, 3, 0.35) == pytest.approx(0.45 - 0.05 - 0.03)
    race.delivered(2, 0.4)  # the reader has enough until the device is there, by its pace, at 1.0 s
    assert race.rest_s(SERVER, 5, 0.4) == pytest.approx(0.8)
    race.first_token(DEVICE, 100, 0.9)
    assert race.rest_s(SERVER, 5, 0.9) == 0.0, "it holds the prompt"
    assert race.hand_over(SERVER, 5, 0.9)


def test_a_server_is_expected_by_what_is_left_of_its_slower_answers():
    """Nine answers in ten take 0.4 s, one takes 2 s: after 0.5 s it is that one."""
    known = history()
    for _ in range(9):
        known.ttft.note(0.4)
    known.ttft.note(2.0)
    known.resumed.note(0.01)
    for elapsed, rests in (({}, True), ({"elapsed_s": 0.1}, True), ({"elapsed_s": 0.5}, False)):
        race = prepared(known, costs=DEVICE_DEARER)
        for side in Side:
            race.took_in(side, 100)
        race.finish()
        race.delivered(4, 0.0)
        assert race.keep_loser(SERVER, 0.0, **elapsed)
        spare_s = 0.8 - 0.01 - 0.02  # less both ways
        assert race.rest_s(DEVICE, 4, 0.0) == pytest.approx(0.8 if rests else spare_s, abs=0.02)


def test_how_long_a_server_takes_to_go_on_is_learnt_apart():
    """Before it is known, it is taken to begin anew."""
    known = history()
    known.ttft.note(1.0)
    race = prepared(known, costs=DEVICE_DEARER)
    for side in Side:
        race.took_in(side, 100)
    race.first_token(DEVICE, 100, 0.5)
    race.delivered(4, 0.5)
    assert race.keep_loser(SERVER, 0.5, 0.5)
    race.first_token(SERVER, 100, 1.0)
    assert not race.hand_over(DEVICE, 4, 0.5), "0.8 s are not enough"
    known.resumed.note(0.1)
    assert race.hand_over(DEVICE, 4, 0.5)
    race.took_in(SERVER, 4)
    race.resumed(SERVER, 4, 0.3)
    assert (list(known.ttft), list(known.resumed)) == ([1.0, 1.0], [0.1, 0.3])


def test_a_hand_over_to_what_was_kept_is_booked_with_what_it_takes_in():
    known = history()
    race = Race(RaceRequest(100, 1000), SERVER_DECODES_CHEAPER, who := account(), known, coin=0.5)
    race.took_in(SERVER, 100)
    race.took_in(DEVICE, 100)
    race.first_token(DEVICE, 100, 0.5)
    known.outputs.note(1000)
    assert race.keep_loser(SERVER, 0.0)
    race.first_token(SERVER, 100, 0.8)
    assert list(known.ttft) == [0.8], "whoever keeps running says how long it takes"
    assert race.hand_over(DEVICE, 3, 0.0)
    race.took_in(SERVER, 3)
    race.over({SERVER: 103, DEVICE: 100})
    assert who.budgets[SERVER].spent == 103


def test_patience_is_some_times_what_is_to_be_expected():
    known = history()
    race = a_race(account(), known)
    assert race.patience_s(SERVER, 0) == float("inf"), "nothing is known of it"
    known.ttft.note(0.1)
    assert race.patience_s(SERVER, 0) == 1.0
    known.ttft.note(2.0)
    assert race.patience_s(SERVER, 0) == 6.0
    assert race.patience_s(DEVICE, 100) == pytest.approx(3 * 2.0)


def test_it_does_not_go_beyond_a_budget():
    known = history()
    known.ttft.note(0.1)
    race = a_race(account(), known, SERVER_DECODES_CHEAPER)
    race.took_in(DEVICE, 100)
    assert not race.hand_over(DEVICE, 1, 0.0), "the server has not been paid for"
    cheap = Costs(PerToken(0.2, 0.1), PerToken(0.15, 1.0), 1.0)
    raced = a_race(account(), known, cheap)
    raced.took_in(DEVICE, 100)
    assert not raced.hand_over(DEVICE, 1, 0.0)
    raced.took_in(SERVER, 100)
    assert raced.hand_over(DEVICE, 1, 0.0)
    raced.limit = 200.0
    assert not raced.hand_over(DEVICE, 1, 0.0), "prompt and answer would make 201"
    raced.limit = 201.0
    assert raced.hand_over(DEVICE, 1, 0.0)


def test_what_a_hand_over_takes_in_is_reserved_with_the_prompt():
    """Reserve the expected answer, 128 tokens, if the constrained endpoint decodes more cheaply."""
    who, known = account(0.5), history()
    for _ in range(9):
        a_race(who, known, DEVICE_CHEAPER).over({SERVER: 0})
    assert a_race(who, known, DEVICE_CHEAPER).limit == 100
    assert a_race(who, known, SERVER_DECODES_CHEAPER).limit == 228


def test_a_loser_keeps_no_prompt_that_the_budget_has_no_answer_for():
    race = a_race(account(), history(), SERVER_DECODES_CHEAPER)
    for side in Side:
        race.took_in(side, 100)
    race.first_token(DEVICE, 100, 0.1)
    race.limit = 100.0
    assert not race.keep_loser(SERVER, 0.0)
    race.limit = 101.0
    assert race.keep_loser(SERVER, 0.0)


def test_what_races_have_taught_travels():
    known, copy = history(), history()
    for i in range(1, 1000):
        known.ttft.note(i / 1000)
        known.prefill.note(i, 0.3 + 0.02 * i)
        known.outputs.note(i % 200)
        known.resumed.note(i / 5000)
    copy.adopt(known.snapshot())
    assert copy.prefill.step_s(70) == known.prefill.step_s(70)
    assert copy.ttft.quantile(0.9) == pytest.approx(known.ttft.quantile(0.9), abs=0.005)
    assert copy.outputs.remaining(30, 500) == pytest.approx(known.outputs.remaining(30, 500), rel=0.01)
    assert copy.resumed.quantile(0.9) == pytest.approx(known.resumed.quantile(0.9), abs=0.001)
    assert copy.snapshot() == known.snapshot()


@pytest.mark.parametrize(("costs", "constrained"), [(DEVICE_CHEAPER, SERVER), (DEVICE_DEARER, DEVICE)])
@pytest.mark.parametrize("start", [BOTH, SERVER_ONLY, DEVICE_ONLY])
def test_a_prompt_is_booked_where_the_constrained_one_starts(costs: Costs, constrained: Side, start: Start):
    class Only(Fixed):
        def choose(self, state: DispatchState) -> Start:
            return start

    who = RaceAccount(Only(), migration.create("never"), {side: Budget(1.0) for side in Side})
    a_race(who, history(), costs)
    starts = (start.server_s if constrained is SERVER else start.device_s) < NEVER
    assert who.budgets[constrained].spent == 100 * starts
