"""The gate: terms are kept to, whoever waits comes in turn, and what an API's replica leaves behind is cleared."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.quota import Quota, Standing, Team, TeamLimits
from tandem.deployments.access.usage import Spent
from tandem.deployments.admission.controller import LEARNING_S, SIGN_S, SILENT_S, Gate
from tandem.deployments.admission.entry import Entry, LimitReached, QuotaExceeded, Room
from tandem.deployments.admission.limits import SETTLED_S
from tandem.deployments.config.settings import GateSettings
from tandem.policies.cost import PerToken
from tests.virtual import in_virtual_time, now_s

pytestmark = pytest.mark.virtual_time

FREE = Terms(0.5, 1e-7)


class Clock:
    """now_s: what it shows."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def gate(clock: Clock, capacity: int = 2, queue_s: float = 30.0, queue: int = 100) -> Gate:
    return Gate({"": lambda: capacity}, GateSettings(queue_s=queue_s, queue=queue), clock)


def entry(
    number: int, account: str = "a", sessions: int = 1, prompt_tokens: int = 10, terms: Terms = FREE
) -> Entry:
    return Entry(number, account, sessions, prompt_tokens, terms)


async def test_an_accounts_waiting_requests_begin_by_priority(clock: Clock) -> None:
    there, order = gate(clock, capacity=1), list[int]()
    await there.enter("api", entry(0))

    async def waits(number: int, priority: int) -> None:
        await there.enter("api", replace(entry(number), priority=priority))
        order.append(number)
        there.leave("api", number)

    waiting = [asyncio.ensure_future(waits(n, priority)) for n, priority in ((1, 5), (2, 0), (3, -1), (4, 0))]
    await asyncio.sleep(0)
    assert there.waiting() == len(waiting)
    there.leave("api", 0)
    await asyncio.gather(*waiting)
    assert order == [3, 2, 4, 1]


async def test_requests_a_minute(clock: Clock) -> None:
    there, terms = gate(clock, capacity=100), Terms(0.5, 1e-7, requests_per_minute=2)
    left = [(await there.enter("api", entry(n, terms=terms))).requests for n in range(2)]
    assert [(a.limit, a.remaining) for a in left if a] == [(2, 1), (2, 0)]
    with pytest.raises(LimitReached, match="2 requests") as refused:
        await there.enter("api", entry(3, terms=terms))
    assert refused.value.retry_after_s == pytest.approx(30)
    clock.now_s = 30.1
    await there.enter("api", entry(4, terms=terms))
    await there.enter("api", entry(5, "b", terms=terms))


async def test_tokens_a_minute_count_what_was_given(clock: Clock) -> None:
    there, terms = gate(clock, capacity=100), Terms(0.5, 1e-7, tokens_per_minute=60)
    passage = await there.enter("api", entry(1, prompt_tokens=20, terms=terms))
    assert passage.requests is None
    assert passage.tokens is not None
    assert passage.tokens.remaining == 40
    there.quotas.used("a", 100)
    with pytest.raises(LimitReached, match="60 tokens") as refused:
        await there.enter("api", entry(2, prompt_tokens=1, terms=terms))
    assert refused.value.retry_after_s == pytest.approx(61)


async def test_a_prompt_longer_than_the_limit_waits_for_all_of_it(clock: Clock) -> None:
    there, terms = gate(clock), Terms(0.5, 1e-7, tokens_per_minute=60)
    await there.enter("api", entry(1, prompt_tokens=500, terms=terms))
    with pytest.raises(LimitReached):
        await there.enter("api", entry(2, prompt_tokens=1, terms=terms))


async def test_new_terms_hold_at_once(clock: Clock) -> None:
    there = gate(clock, capacity=100)
    await there.enter("api", entry(1, terms=Terms(0.5, 1e-7, requests_per_minute=1)))
    with pytest.raises(LimitReached):
        await there.enter("api", entry(2, terms=Terms(0.5, 1e-7, requests_per_minute=1)))
    await there.enter("api", entry(3, terms=Terms(0.5, 1e-7, requests_per_minute=5)))
    await there.enter("api", entry(4))


async def test_limits_that_change_to_and_fro_forgive_nothing(clock: Clock) -> None:
    """Two replicas of the API may know different ones for a moment."""
    there, entered = gate(clock, capacity=100), 0
    for number in range(20):
        terms = Terms(0.5, 1e-7, requests_per_minute=3 + number % 2)
        with suppress(LimitReached):
            await there.enter("api", entry(number, terms=terms))
            entered += 1
    assert entered == 4


@in_virtual_time
async def test_answers_at_once() -> None:
    there, terms = gate(Clock(), capacity=100), Terms(0.5, 1e-7, concurrent=3)
    await there.enter("api", entry(1, sessions=2, terms=terms))
    with pytest.raises(LimitReached, match="3 answers"):
        await there.enter("api", entry(2, sessions=2, terms=terms))
    await there.enter("api", entry(3, terms=terms))
    there.leave("api", 1)
    await there.enter("api", entry(4, sessions=2, terms=terms))
    begun_s = now_s()
    with pytest.raises(LimitReached, match="3 answers"):
        await there.enter("api", entry(5, sessions=4, terms=terms))
    assert now_s() == begun_s, "it would never be let in"
    assert not there._beyond


@in_virtual_time
async def test_whoever_leaves_while_it_waits_for_the_limit_takes_no_place() -> None:
    there, terms = gate(Clock(), capacity=100), Terms(0.5, 1e-7, concurrent=1)
    await there.enter("api", entry(1, terms=terms))
    waiting = asyncio.create_task(there.enter("api", entry(2, terms=terms)))
    await asyncio.sleep(0.1)
    there.leave("api", 2)
    there.leave("api", 1)
    with pytest.raises(LimitReached):
        await waiting
    assert there._fair[""].of("a") == 0


async def test_one_account_cannot_keep_the_others_out(clock: Clock) -> None:
    there = gate(clock)
    for number in range(2):
        await there.enter("api", entry(number))
    order: list[str] = []

    async def ask(number: int, account: str) -> None:
        await there.enter("api", entry(number, account))
        order.append(account)

    waiting = [asyncio.create_task(ask(10 + n, "a")) for n in range(5)]
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(ask(20, "b")))
    await asyncio.sleep(0)
    assert there.waiting() == 6
    there.leave("api", 0)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert order == ["b"]
    for number in (1, 20, 10, 11, 12, 13):
        there.leave("api", number)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert order == ["b", *"aaaaa"]


async def test_nobody_waits_for_ever(clock: Clock) -> None:
    there = gate(clock, capacity=1, queue_s=0.01)
    await there.enter("api", entry(1))
    with pytest.raises(LimitReached, match="no room"):
        await there.enter("api", entry(2))
    assert there.waiting() == 0
    there.leave("api", 1)
    await there.enter("api", entry(3))


async def test_only_so_many_wait(clock: Clock) -> None:
    there = gate(clock, capacity=1, queue=1)
    await there.enter("api", entry(1))
    waiting = asyncio.create_task(there.enter("api", entry(2)))
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="wait already"):
        await there.enter("api", entry(3))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert there.waiting() == 0


async def test_who_left_while_waiting_takes_no_place(clock: Clock) -> None:
    there = gate(clock, capacity=1, queue_s=0.01)
    await there.enter("api", entry(1))
    gone = asyncio.create_task(there.enter("api", entry(2)))
    await asyncio.sleep(0)
    there.leave("api", 2)  # its client has gone
    assert there.waiting() == 0
    with pytest.raises(LimitReached):
        await gone
    there.leave("api", 1)
    await there.enter("api", entry(3))


async def test_a_silent_replica_of_the_api_has_nothing_under_way(clock: Clock) -> None:
    there = gate(clock, queue_s=0.01)
    for number in range(2):
        await there.enter("dead", entry(number))
    clock.now_s = SILENT_S + 1
    await there.enter("alive", entry(3))
    await there.enter("alive", entry(4))
    with pytest.raises(LimitReached):
        await there.enter("alive", entry(5))


async def test_one_that_only_waits_is_not_taken_for_silent(clock: Clock) -> None:
    there = gate(clock, capacity=1)
    await there.enter("busy", entry(1))
    waiting = asyncio.create_task(there.enter("idle", entry(2)))
    await asyncio.sleep(0)
    clock.now_s = SILENT_S + 1
    there.under_way("busy", {1: entry(1)})
    later = asyncio.create_task(there.enter("busy", entry(3, "b")))
    await asyncio.sleep(0)
    assert there.waiting() == 2
    there.leave("busy", 1)
    await waiting
    there.leave("idle", 2)
    await later


async def test_a_sign_of_life_says_what_is_under_way(clock: Clock) -> None:
    """Report to a new router, which knows none of them, and to an old one, which missed an end."""
    there = gate(clock, capacity=2, queue_s=0.01)
    there.under_way("api", {n: entry(n) for n in range(2)})
    with pytest.raises(LimitReached):
        await there.enter("api", entry(5))
    there.under_way("api", {1: entry(1)})
    await there.enter("api", entry(6))
    there.under_way("api", {})
    assert there._fair[""].under_way == there.waiting() == 0


async def test_a_sign_of_life_forgets_nobody_who_waits(clock: Clock) -> None:
    there = gate(clock, capacity=1)
    await there.enter("api", entry(1))
    waiting = asyncio.create_task(there.enter("api", entry(2)))
    await asyncio.sleep(0)
    there.under_way("api", {1: entry(1)})
    assert there.waiting() == 1
    there.leave("api", 1)
    await waiting


PRICE = PerToken(0.001, 0.01)
SINCE = "2026-11-01"


def paid(number: int, output: int, spent: float = 0.0, usd: float | None = 10.0, **terms: Any) -> Entry:
    """Return an entry with one answer to a prompt of ten tokens, at the gate that charges PRICE."""
    limits = Terms(0.5, 1e-7, usd=usd, **terms)
    made = entry(number, terms=limits)
    return replace(
        made,
        rooms=(Room(number, 10, output),),
        spent=Spent(SINCE, spent) if usd is not None else None,
    )


def most(output: int) -> float:
    """Return the most that `paid` may cost."""
    return PRICE.of(10 + output, output)


def charging(clock: Clock) -> Gate:
    return Gate({"": lambda: 1000}, GateSettings(), clock, price=lambda _: PRICE)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=50, max_size=50), st.integers(50, 200)
)
def test_tokens_a_minute_are_kept_to_with_fifty_at_once(answers: list[tuple[int, float]], limit: int) -> None:
    async def run() -> None:
        there, taken, let_in = charging(Clock()), 0, []
        for number, (output, part) in enumerate(answers):
            with suppress(LimitReached):
                await there.enter("api", paid(number, output, usd=None, tokens_per_minute=limit))
                let_in.append((number, int(output * part)))
                taken += 10 + int(output * part)
        assert taken <= limit
        for number, given_out in let_in:
            there.quotas.used("a", given_out, number)
            there.leave("api", number)
        bucket = there.quotas._limits["a"].tokens
        assert bucket is not None
        assert bucket.left(0.0) == limit - taken, "what was not taken comes back"
        assert not there.quotas._reserved

    asyncio.run(run())


async def test_a_request_that_no_minute_has_room_for_is_refused(clock: Clock) -> None:
    with pytest.raises(LimitReached, match="100 tokens a minute.*110.*max_tokens"):
        await charging(clock).enter("api", paid(1, 100, usd=None, tokens_per_minute=100))


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0, 1)), min_size=50, max_size=50), st.floats(0.1, 10))
def test_dollars_are_kept_to_with_fifty_at_once(answers: list[tuple[int, float]], limit: float) -> None:
    async def run() -> None:
        there, spent, let_in = charging(Clock()), 0.0, []
        for number, (output, part) in enumerate(answers):
            with suppress(LimitReached, QuotaExceeded):
                await there.enter("api", paid(number, output, usd=limit))
                let_in.append((number, most(output) * part))
        for number, usd in let_in:
            spent += usd
            there.quotas.used("a", 0, number, Standing(Spent(SINCE, spent)))
            there.leave("api", number)
        assert spent <= limit * (1 + 1e-6)
        if let_in:
            spending = there.quotas._limits["a"].spending
            assert spending is not None
            assert spending.reserved == pytest.approx(0.0, abs=1e-9)

    asyncio.run(run())


async def test_it_is_known_of_which_answers_the_dollars_are_limited(clock: Clock) -> None:
    there, without = charging(clock), charging(clock)
    await there.enter("api", paid(1, 40, usd=0.5))
    await without.enter("api", paid(1, 40, usd=None, tokens_per_minute=1000))
    assert there.quotas.limits_usd(1)
    assert not without.quotas.limits_usd(1)
    assert not there.quotas.limits_usd(2)
    there.quotas.used("a", 40, 1, Standing(Spent(SINCE, 0.45)))
    assert not there.quotas.limits_usd(1)


async def test_dollars_that_are_spent_are_another_refusal_than_reserved_ones(clock: Clock) -> None:
    there = charging(clock)
    await there.enter("api", paid(1, 40, usd=0.5))
    with pytest.raises(LimitReached, match="reserved") as waits:
        await there.enter("api", paid(2, 40, usd=0.5))
    assert waits.value.retry_after_s == 1.0
    there.quotas.used("a", 40, 1, Standing(Spent(SINCE, 0.45)))
    with pytest.raises(QuotaExceeded, match=r"0.5 dollars a month: 0.050000 are left since 2026-11-01.*0.45"):
        await there.enter("api", paid(3, 40, usd=0.5))
    await there.enter("api", paid(4, 2, usd=0.5))
    await there.enter("api", paid(5, 40, usd=None))


async def test_the_ledger_s_dollars_count_after_a_restart(clock: Clock) -> None:
    with pytest.raises(QuotaExceeded):
        await charging(clock).enter("api", paid(1, 10, spent=9.95))


async def test_a_new_gate_knows_the_reservations_of_requests_under_way(clock: Clock) -> None:
    there = charging(clock)
    there.under_way("api", {1: paid(1, 40, usd=0.5)})
    with pytest.raises(LimitReached, match="reserved"):
        await there.enter("api", paid(2, 40, usd=0.5))


async def test_a_new_gate_counts_what_is_over_and_not_booked_yet(clock: Clock) -> None:
    """Dollars of an answer whose bill waits for the ledger are in neither the ledger nor the new gate."""
    there = charging(clock)
    over = replace(paid(1, 40, usd=1.0), sessions=0)
    for _ in range(5):
        there.under_way("api", {1: over})
        assert not there.under_way_now
        clock.now_s += SETTLED_S / 2
    with pytest.raises(LimitReached, match="reserved"):
        await there.enter("api", paid(2, 60, spent=0.1, usd=1.0))
    there.quotas.used("a", 40, 1, Standing(Spent(SINCE, 0.55)))
    there.under_way("api", {})
    with pytest.raises(QuotaExceeded):
        await there.enter("api", paid(3, 60, spent=0.1, usd=1.0))
    await there.enter("api", paid(4, 38, spent=0.1, usd=1.0))


async def test_an_end_that_was_not_told_is_seen_in_what_is_not_booked_yet(clock: Clock) -> None:
    there = charging(clock)
    one = paid(1, 40, concurrent=1)
    await there.enter("api", one)
    there.under_way("api", {1: replace(one, sessions=0)})
    await there.enter("api", paid(2, 40, concurrent=1))
    assert set(there.quotas._reserved) == {1, 2}


async def test_what_a_request_has_read_in_the_ledger_is_not_counted_again(clock: Clock) -> None:
    """The first one's bill is booked, and the gate is told of it a little later."""
    there = charging(clock)
    await there.enter("api", paid(1, 40, usd=1.0))
    with suppress(LimitReached):
        await there.enter("api", paid(2, 40, spent=0.45, usd=1.0))
    there.quotas.used("a", 40, 1, Standing(Spent(SINCE, 0.45)))
    await there.enter("api", paid(3, 40, spent=0.45, usd=1.0))


async def test_an_answer_that_never_began_gives_its_reservation_back(clock: Clock) -> None:
    there = charging(clock)
    await there.enter("api", paid(1, 40, usd=0.5, tokens_per_minute=60))
    there.leave("api", 1)
    with pytest.raises(LimitReached):
        await there.enter("api", paid(2, 40, usd=0.5))
    clock.now_s = SETTLED_S
    await there.enter("api", paid(3, 40, usd=0.5))
    assert set(there.quotas._reserved) == {3}


async def test_a_request_that_is_told_of_again_is_reserved_once(clock: Clock) -> None:
    there, told = charging(clock), paid(1, 40, usd=0.5, tokens_per_minute=60)
    await there.enter("api", told)
    there.leave("api", 1)
    clock.now_s = 0.5 * SETTLED_S
    there.under_way("api", {1: told})  # on its way when the request left, or that was never said
    spending, tokens = there.quotas._limits["a"].spending, there.quotas._limits["a"].tokens
    assert spending is not None
    assert tokens is not None
    assert spending.reserved == pytest.approx(most(40))
    assert tokens.left(clock.now_s) == pytest.approx(60 - 10 - 40 + clock.now_s)
    clock.now_s = SETTLED_S
    with pytest.raises(LimitReached):
        await there.enter("api", paid(2, 40, usd=0.5))
    there.leave("api", 1)
    clock.now_s = 2 * SETTLED_S
    await there.enter("api", paid(3, 40, usd=0.5))
    assert set(there.quotas._reserved) == {3}


async def test_tokens_that_were_not_taken_are_not_given_back(clock: Clock) -> None:
    """The account had dollars alone when the first answer began; the limit of tokens came later."""
    there = charging(clock)
    await there.enter("api", paid(1, 50, tokens_per_minute=None))
    await there.enter("api", paid(2, 40, tokens_per_minute=100))
    there.quotas.used("a", 0, 1, Standing(Spent(SINCE, 0.1)))
    tokens = there.quotas._limits["a"].tokens
    assert tokens is not None
    assert tokens.left(clock.now_s) == 50


async def test_a_limit_that_changes_meanwhile_gets_its_tokens_back(clock: Clock) -> None:
    there = charging(clock)
    await there.enter("api", paid(1, 40, usd=None, tokens_per_minute=100))
    await there.enter("api", paid(2, 10, usd=None, tokens_per_minute=200))
    there.quotas.used("a", 30, 1)
    tokens = there.quotas._limits["a"].tokens
    assert tokens is not None
    assert tokens.left(clock.now_s) == 200 - (10 + 30) - (10 + 10)


def of_team(number: int, account: str, output: int, quota: Quota, **terms: Any) -> Entry:
    """Return an entry as `paid`, of an account without a limit of dollars of its own, whose team has a quota."""
    made = replace(paid(number, output, usd=None, **terms), account=account)
    spent = None if quota.usd is None else Spent(SINCE, 0.0)
    return replace(made, team=TeamLimits(Team("red", quota), spent))


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 60), st.floats(0, 1)), min_size=50, max_size=50),
    st.floats(0.1, 10),
)
def test_a_teams_dollars_are_kept_to_with_fifty_at_once_over_two_keys(
    answers: list[tuple[str, int, float]], limit: float
) -> None:
    async def run() -> None:
        there, spent, let_in = charging(Clock()), 0.0, []
        for number, (account, output, part) in enumerate(answers):
            with suppress(LimitReached, QuotaExceeded):
                await there.enter("api", of_team(number, account, output, Quota(usd=limit)))
                let_in.append((number, account, most(output) * part))
        for number, account, usd in let_in:
            spent += usd
            team = TeamLimits(Team("red", Quota(usd=limit)), Spent(SINCE, spent))
            there.quotas.used(account, 0, number, Standing(team=team))
            there.leave("api", number)
        assert spent <= limit * (1 + 1e-6)
        for number, (account, output, _) in enumerate(answers, 50):  # what they did not take is free again
            with suppress(LimitReached, QuotaExceeded):
                await there.enter("api", of_team(number, account, output, Quota(usd=limit)))
                spent += most(output)
        assert spent <= limit * (1 + 1e-6)

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 60)), min_size=50, max_size=50),
    st.integers(20, 200),
    st.integers(1, 40),
)
def test_a_teams_minute_is_kept_to_with_fifty_at_once_over_two_keys(
    answers: list[tuple[str, int]], tokens: int, requests: int
) -> None:
    async def run() -> None:
        there, taken, entered = charging(Clock()), 0, 0
        quota = Quota(tokens_per_minute=tokens, requests_per_minute=requests)
        for number, (account, output) in enumerate(answers):
            with suppress(LimitReached):
                passage = await there.enter("api", of_team(number, account, output, quota))
                taken, entered = taken + 10 + output, entered + 1
                assert passage.requests is not None
                assert passage.requests.remaining == requests - entered
        assert taken <= tokens
        assert entered <= requests

    asyncio.run(run())


@in_virtual_time
async def test_a_teams_answers_at_once() -> None:
    there, quota = charging(Clock()), Quota(concurrent=2)
    await there.enter("api", of_team(1, "a", 1, quota))
    await there.enter("api", of_team(2, "b", 1, quota, concurrent=5))
    with pytest.raises(LimitReached, match="at most 2 answers at once for the team 'red'"):
        await there.enter("api", of_team(3, "b", 1, quota))
    await there.enter("api", entry(4, "c"))
    waiting = asyncio.create_task(there.enter("api", of_team(5, "b", 1, quota)))
    await asyncio.sleep(0.1)
    there.leave("api", 1)
    await waiting
    for number in (2, 4, 5):
        there.leave("api", number)
    assert not there._at_once


async def test_a_keys_own_limit_holds_beside_its_teams(clock: Clock) -> None:
    there = charging(clock)
    quota = Quota(requests_per_minute=100, usd=100.0)
    await there.enter("api", of_team(1, "a", 1, quota, requests_per_minute=1))
    with pytest.raises(LimitReached, match="at most 1 requests a minute$"):
        await there.enter("api", of_team(2, "a", 1, quota, requests_per_minute=1))
    with pytest.raises(QuotaExceeded, match="at most 0.1 dollars a month for the team 'red'"):
        await there.enter("api", of_team(3, "b", 100, Quota(usd=0.1)))
    refused = there.quotas._limits["b"].requests
    assert refused is None, "a refusal takes nothing"


async def test_a_new_gate_waits_until_it_has_heard_what_its_predecessor_let_in() -> None:
    """Here an answer under way, and dollars that are spent since the caller was known."""
    loop, limited = asyncio.get_running_loop(), replace(FREE, concurrent=1, usd=10.0)
    asked: list[str] = []

    async def spent(account: str) -> Standing:
        asked.append(account)
        return Standing(Spent("2026-11-01", 9.5))

    there = Gate({"": lambda: 9}, GateSettings(), loop.time, lambda _: PerToken(0.0, 0.1), spent)
    room = (Room(7, 1, 10),)
    stale = Entry(7, "a", 1, 1, limited, rooms=room, spent=Spent("2026-11-01", 0.0))
    first = asyncio.ensure_future(there.enter("api", stale))
    await there.enter("api", entry(1, "b"))
    assert loop.time() == 0.0, "who has no limit does not wait"
    await asyncio.sleep(SIGN_S)
    there.under_way("other", {8: replace(stale, request=8, rooms=())})
    with pytest.raises(LimitReached, match="at most 1 answers at once"):
        await first
    assert loop.time() >= LEARNING_S
    there.leave("other", 8)
    assert asked == ["a"]
    fresh = Gate({"": lambda: 9}, GateSettings(), loop.time, lambda _: PerToken(0.0, 0.1), spent)
    with pytest.raises(QuotaExceeded, match="0.5"):
        await fresh.enter("api", stale)
    began_s = loop.time()
    await there.enter("api", replace(stale, spent=Spent("2026-11-01", 1.0)))
    assert loop.time() == began_s, "it knows everything by now"


async def test_a_bill_that_no_gate_was_told_of_counts_though_a_caller_is_known_from_before() -> None:
    """The router was dead when the bill was booked; the key service is since the router is back."""
    loop, asked = asyncio.get_running_loop(), []

    async def spent(account: str) -> Standing:
        asked.append(account)
        return Standing(Spent(SINCE, 0.9), TeamLimits(Team("red", Quota(usd=1.0)), Spent(SINCE, 0.95)))

    there = Gate({"": lambda: 9}, GateSettings(), loop.time, lambda _: PerToken(0.0, 0.1), spent)
    await asyncio.sleep(LEARNING_S)
    alone = paid(1, 2, spent=0.0, usd=1.0)
    with pytest.raises(QuotaExceeded, match=r"0.1\d* are left"):
        await there.enter("api", alone)
    with pytest.raises(QuotaExceeded, match=r"0.1\d* are left"):
        await there.enter("api", alone)
    assert asked == ["a"], "later bills are told of"
    joined = replace(alone, team=TeamLimits(Team("red", Quota(usd=1.0)), Spent(SINCE, 0.0)))
    with pytest.raises(QuotaExceeded, match="for the team 'red'"):
        await there.enter("api", replace(joined, rooms=(Room(1, 0, 1),), terms=FREE))


async def test_few_wait_for_a_new_gate() -> None:
    async def spent(account: str) -> Standing:
        return Standing()

    loop, limited = asyncio.get_running_loop(), replace(FREE, concurrent=9)
    there = Gate({"": lambda: 9}, GateSettings(queue=2), loop.time, spent=spent)
    waiting = [asyncio.ensure_future(there.enter("api", entry(n, terms=limited))) for n in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(LimitReached, match="2 requests wait already"):
        await there.enter("api", entry(2, terms=limited))
    waiting.pop().cancel()
    await asyncio.sleep(0)
    await there.enter("api", entry(3, terms=limited))
    await asyncio.gather(*waiting)
    assert there.under_way_now == 2
