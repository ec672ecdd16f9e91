"""Calls of the policy, its state, and what follows, over sessions and memory that are plain data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.estimators.step_time import StepTimeModel
from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.base import EngineLoad, Ints, scheduling
from tandem.policies.scheduling.control import FADE, SOON, SchedulingControl
from tests.policies.scheduling.views import MemoryData, SessionData


class Says:
    """Chooses the sessions at these places of those it is shown; notes what it is shown."""

    interval_s = 1.0

    def __init__(self, *chosen: int) -> None:
        self.chosen = chosen
        self.shown: list[EngineLoad] = []

    def choose(self, load: EngineLoad) -> Ints:
        self.shown.append(load)
        return np.array(self.chosen, dtype=np.int64)


def control(policy: Says, most: int = 2, memory: MemoryData | None = None) -> SchedulingControl:
    """most: sessions that may run at once."""
    return SchedulingControl(policy, memory or MemoryData(), StepTimeModel(), most)


def sessions(count: int, **changes: object) -> list[SessionData]:
    return [SessionData(i, **changes) for i in range(count)]  # type: ignore[arg-type]


def with_buffer(number: int, tokens: int) -> SessionData:
    """Return a session whose reader takes 10 tokens/s and has `tokens` unread."""
    reader = Reader(10.0)
    reader.deliver(tokens, 0.0)
    return SessionData(number, reader=reader)


# -- without stress -------------------------------------------------------------------------------------


def test_nothing_is_decided_without_stress() -> None:
    policy = Says()
    over = control(policy)
    crowd = [*sessions(2), SessionData(5, wanting=False), SessionData(6, wanting=False, admitted=False)]
    for now in (0.0, 5.0, 9.0):
        over.changed()
        over.decide(crowd, now)
        assert over.due_s(crowd, now) is None
    assert (policy.shown, over.decisions) == ([], 0)
    assert not any(s.paused for s in crowd)


def test_whoever_is_new_is_decided_about_before_it_runs() -> None:
    policy = Says(0, 1)
    over = control(policy)
    crowd = sessions(3)
    over.decide(crowd, 0.0)
    over.decide(crowd, 0.01)
    assert len(policy.shown) == 1
    crowd.append(SessionData(3, admitted=False, fresh=True))
    over.changed()
    over.decide(crowd, 0.02)  # much sooner than SOON
    assert len(policy.shown) == 2
    assert crowd[3].paused


def test_when_the_stress_is_over_everybody_runs() -> None:
    policy = Says(0, 1)
    over = control(policy)
    crowd = sessions(3)
    over.decide(crowd, 0.0)
    assert [s.paused for s in crowd] == [False, False, True]
    over.changed()
    over.decide(crowd[1:], 5.0)
    assert [s.paused for s in crowd[1:]] == [False, False]
    assert over.decisions == 1
    assert over.due_s(crowd[1:], 5.0) is None


@pytest.mark.parametrize("stress", ["one more than may run", "one that holds nothing"])
def test_stress_is_somebody_who_waits_or_would_have_to(stress: str) -> None:
    policy = Says(0)
    crowd = (
        sessions(3) if stress == "one more than may run" else [SessionData(0), SessionData(1, admitted=False)]
    )
    control(policy).decide(crowd, 0.0)
    assert len(policy.shown) == 1


# -- what follows from a decision -----------------------------------------------------------------------


def test_the_chosen_run_in_their_order_and_the_others_pause() -> None:
    crowd = sessions(5)
    over = control(Says(3, 1))
    over.decide(crowd, 0.0)
    assert [s.paused for s in crowd] == [True, False, True, False, True]
    assert sorted(crowd, key=lambda s: s.rank)[:2] == [crowd[3], crowd[1]]
    assert over.decisions == 1


def test_of_the_others_the_fullest_buffer_gives_way_first() -> None:
    crowd = [with_buffer(0, 30), with_buffer(1, 0), with_buffer(2, 90), with_buffer(3, 60)]
    control(Says(1)).decide(crowd, 1.0)
    assert [s.number for s in sorted(crowd, key=lambda s: s.rank)] == [1, 0, 3, 2]
    assert len({s.rank for s in crowd}) == 4


def test_who_waits_for_its_client_is_not_asked_about() -> None:
    """An idle session may prefill if there is room, in order of its age."""
    policy = Says(2)
    idle = SessionData(7, wanting=False, paused=True)
    crowd = [*sessions(2), idle, SessionData(9)]
    control(policy).decide(crowd, 0.0)
    assert policy.shown[0].arrival.tolist() == [0, 1, 2]
    assert (idle.paused, idle.rank) == (False, 7)
    assert [s.number for s in crowd if not s.paused] == [7, 9]


def test_who_has_just_come_keeps_its_place_until_its_next_token() -> None:
    crowd = sessions(4)
    crowd[3].fresh = True
    control(Says(0, 1)).decide(crowd, 0.0)
    assert [s.number for s in sorted(crowd, key=lambda s: s.rank) if not s.paused] == [3, 0]


@pytest.mark.parametrize("change", [{"admitted": False}, {"paused": True}])
def test_who_holds_no_place_keeps_none(change: dict[str, bool]) -> None:
    crowd = sessions(4)
    crowd[3] = SessionData(3, fresh=True, **change)  # type: ignore[arg-type]
    control(Says(0, 1)).decide(crowd, 0.0)
    assert [s.number for s in crowd if not s.paused] == [0, 1]


def test_the_fresh_keep_no_more_than_there_is_room_for() -> None:
    crowd = sessions(4, fresh=True)
    control(Says(3, 2), most=3).decide(crowd, 0.0)
    assert [s.number for s in sorted(crowd, key=lambda s: s.rank) if not s.paused] == [0, 1, 2]


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=12),
    st.sampled_from(list(scheduling)),
    st.integers(1, 6),
    st.integers(100, 2000),
)
def test_who_runs_fits_and_is_ranked_first(
    states: Sequence[tuple[bool, bool, bool, bool]], name: str, most: int, capacity: int
) -> None:
    """Under stress, with every policy: as many as may, somebody at least, and nobody twice."""
    crowd = [
        SessionData(i, wanting=wanting, admitted=admitted, fresh=fresh, paused=paused)
        for i, (wanting, admitted, fresh, paused) in enumerate(states)
    ]
    memory = MemoryData(capacity=capacity)
    over = SchedulingControl(scheduling.create(name), memory, StepTimeModel(), most)
    over.decide(crowd, 0.0)
    wanting = [s for s in crowd if s.wanting]
    running = [s for s in wanting if not s.paused]
    assert bool(running) == bool(wanting)
    assert len(running) <= most
    if over.decisions:
        ranks = sorted(s.rank for s in wanting)
        assert len(set(ranks)) == len(ranks)
        assert all(s.rank < r.rank for s in running for r in wanting if r.paused)


# -- when -----------------------------------------------------------------------------------------------


def test_decisions_come_at_the_policys_interval() -> None:
    policy = Says(0, 1)
    over = control(policy)
    crowd = sessions(3)
    for tenth in range(35):
        over.decide(crowd, tenth / 10)
    assert over.decisions == len(policy.shown) == 4  # at 0, 1, 2 and 3 s
    assert over.due_s(crowd, 3.5) == pytest.approx(0.5)


def test_a_change_brings_the_next_decision_forward_but_not_to_at_once() -> None:
    policy = Says(0, 1)
    over = control(policy)
    crowd = sessions(3)
    over.decide(crowd, 0.0)
    for hundredth in range(1, 100):
        over.changed()
        now = hundredth / 100
        assert over.due_s(crowd, now) == pytest.approx(max(0.0, over.decisions * SOON - now))
        over.decide(crowd, now)
    assert over.decisions == 1 / SOON  # at 0, 0.25, 0.5 and 0.75 s
    over.decide(crowd, 1.0)
    assert over.decisions == 1 / SOON + 1, "the change that came at 0.99 s is still to be seen to"


def test_who_comes_to_a_calm_engine_is_decided_on_at_once() -> None:
    over = control(Says(0, 1))
    over.decide(sessions(2), 10.0)
    over.changed()
    crowd = sessions(3)
    assert over.due_s(crowd, 10.01) == 0.0
    over.decide(crowd, 10.01)
    assert over.decisions == 1


# -- what the policy is shown ---------------------------------------------------------------------------


def test_what_the_policy_is_shown() -> None:
    policy = Says(0)
    memory = MemoryData(capacity=640, block_size=4, places=5, copy_s=1e-3, copy_queue_s=0.25)
    step_time = StepTimeModel(base_s=0.09, token_s=0.01)
    runs = SessionData(3, opened_s=1.0, reader=Reader(20.0), received=7, longest=50)
    runs.reader.deliver(30, 10.0)
    waits = SessionData(4, opened_s=9.5, admitted=False, received=0, missing=40, stored=60, longest=9)
    SchedulingControl(policy, memory, step_time, 8).decide([runs, waits], 10.5)
    (load,) = policy.shown
    assert load.arrival.tolist() == [0, 1]
    assert load.age_s.tolist() == [9.5, 1.0]
    assert load.received.tolist() == [7, 0]
    assert load.rate.tolist() == [20.0, 10.0]
    assert load.buffer.tolist() == pytest.approx([20.0, 0.0])
    assert load.running.tolist() == [True, False]
    # 40 + 7 and 10 more by the next decision, a step being 0.09 + 2 · 0.01 s; 40 + 9 at most; in whole blocks
    assert load.tokens.tolist() == [60, 52]
    assert load.longest.tolist() == [50, 9]
    assert load.missing.tolist() == [0, 40]
    assert load.stored.tolist() == [0, 40], "of what is missing"
    assert (load.capacity, load.places, load.interval_s) == (640, 5, 1.0)
    assert (load.base_s, load.token_s, load.copy_s, load.copy_queue_s) == (0.09, 0.01, 1e-3, 0.25)
    assert load.expected == (50 + 9) / 2


def test_who_has_waited_in_another_session_goes_before_those_who_came_since() -> None:
    policy = Says(0)
    memory = MemoryData(capacity=640, block_size=4, places=1)
    sessions = [SessionData(n, opened_s=at_s) for n, at_s in ((1, 1.0), (2, 2.0), (3, 0.5), (4, 2.0))]
    SchedulingControl(policy, memory, StepTimeModel(base_s=0.09, token_s=0.01), 1).decide(sessions, 3.0)
    assert policy.shown[0].arrival.tolist() == [1, 2, 0, 3]


def test_the_expected_output_is_learnt_from_those_that_ended() -> None:
    policy = Says(0)
    over = control(policy)
    crowd = sessions(3)
    over.ended(40)
    over.decide(crowd, 0.0)
    over.ended(140)
    over.decide(crowd, 1.0)
    assert [load.expected for load in policy.shown] == pytest.approx([40, FADE * 40 + (1 - FADE) * 140])
    over.ended(140)
    assert over.due_s(crowd, 1.0) == SOON, "an end is a change"
