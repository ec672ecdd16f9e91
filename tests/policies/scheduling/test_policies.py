from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.scheduling.andes import Andes
from tandem.policies.scheduling.base import EngineLoad, FirstComeFirstServed, fit, scheduling
from tandem.policies.scheduling.buffer_aware import BufferAware
from tandem.policies.scheduling.decaying import DecayingReserve
from tandem.policies.scheduling.resting import Resting
from tandem.policies.scheduling.shortest import ShortestRemaining


def load(count: int, **changes: Any) -> EngineLoad:
    """Return `count` equal running requests with a buffer; `changes` replace fields, single values for all."""
    fields: dict[str, Any] = {
        "arrival": np.arange(count),
        "age_s": 5.0,
        "received": 50,
        "rate": 10.0,
        "buffer": 30.0,
        "running": True,
        "tokens": 160,
        "longest": 256,
        "missing": 0,
        "stored": 0,
    }
    scalars = {
        "capacity": 10_000,
        "places": 64,
        "interval_s": 0.2,
        "base_s": 0.01,
        "token_s": 1e-4,
        "copy_s": 1e-6,
        "copy_queue_s": 0.0,
        "expected": 128.0,
    }
    kinds = {"age_s": float, "rate": float, "buffer": float, "running": bool}
    for name, value in changes.items():
        (scalars if name in scalars else fields)[name] = value
    arrays = {
        name: np.broadcast_to(np.asarray(value, dtype=kinds.get(name, int)), count).copy()
        for name, value in fields.items()
    }
    return EngineLoad(**arrays, **scalars)  # type: ignore[arg-type]


@st.composite
def loads(draw: st.DrawFn) -> EngineLoad:
    count = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 2**32))
    random = np.random.default_rng(seed)
    received = random.integers(0, 300, count) * (random.random(count) < 0.7)
    running = random.random(count) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    missing = np.where(running, 0, random.integers(0, 300, count))
    return load(
        count,
        arrival=random.permutation(count),
        age_s=random.uniform(0, 30, count),
        received=received,
        rate=random.choice([1.0, 5.0, 20.0], count),
        buffer=random.uniform(0, 60, count) * (received > 0),
        running=running,
        tokens=random.integers(1, 600, count),
        longest=received + random.integers(1, 300, count),
        missing=missing,
        stored=(missing * random.random(count)).astype(int),
        capacity=draw(st.integers(100, 6000)),
        places=draw(st.integers(1, 30)),
        copy_s=draw(st.sampled_from([1e-6, 1e-3, float("inf")])),
    )


@pytest.mark.parametrize("name", list(scheduling))
@given(load=loads())
def test_contract(name: str, load: EngineLoad) -> None:
    """At least one request runs, none twice, and there is room for all of them."""
    chosen = scheduling.create(name).choose(load).tolist()
    assert 1 <= len(chosen) <= load.places
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(range(len(load)))
    assert len(chosen) == 1 or load.tokens[chosen].sum() <= load.capacity


@pytest.mark.parametrize("name", list(scheduling))
def test_where_there_is_room_for_all_all_run(name: str) -> None:
    assert sorted(scheduling.create(name).choose(load(6)).tolist()) == list(range(6))


def test_fit_lets_small_ones_pass_only_if_told_to() -> None:
    crowd = load(4, tokens=[50, 80, 20, 10], capacity=100)
    order = np.arange(4)
    assert fit(crowd, order).tolist() == [0, 2, 3]
    assert fit(crowd, order, overtake=False).tolist() == [0]
    assert fit(load(2, tokens=500, capacity=100), np.array([1, 0])).tolist() == [1]


def test_fcfs_preempts_nobody_and_lets_nobody_overtake() -> None:
    crowd = load(
        4, arrival=[3, 0, 1, 2], running=[True, False, False, False], tokens=[60, 50, 30, 10], capacity=100
    )
    assert FirstComeFirstServed().choose(crowd).tolist() == [0]


def test_conservative_fcfs_keeps_room_for_the_output() -> None:
    crowd = load(
        3,
        running=[True, False, False],
        tokens=100,
        received=[90, 0, 0],
        longest=100,
        missing=[0, 99, 99],
        capacity=350,
    )
    assert FirstComeFirstServed().choose(crowd).tolist() == [0, 1, 2]
    assert FirstComeFirstServed(reserve=1.0).choose(crowd).tolist() == [0, 1]  # 110 + 200 of 350
    grown = load(3, tokens=120, received=0, longest=100, capacity=360)
    assert sorted(FirstComeFirstServed(reserve=1.0).choose(grown).tolist()) == [
        0,
        1,
        2,
    ]  # nobody is sent away


class TestBufferAware:
    def test_the_reader_about_to_run_dry_goes_first(self) -> None:
        crowd = load(3, buffer=[40.0, 0.5, 20.0], running=[True, False, False], places=1)
        assert BufferAware().choose(crowd).tolist() == [1]

    def test_who_would_stall_before_coming_back_is_not_displaced(self) -> None:
        crowd = load(2, buffer=[2.0, 0.0], received=[9, 0], running=[True, False], missing=[0, 20], places=1)
        assert BufferAware(conservativeness=1.0).choose(crowd).tolist() == [0]
        rich = load(2, buffer=[40.0, 0.0], received=[90, 0], running=[True, False], missing=[0, 20], places=1)
        assert BufferAware(conservativeness=1.0).choose(rich).tolist() == [1]
        assert BufferAware(conservativeness=20.0).choose(rich).tolist() == [0]

    def test_a_faster_reader_drains_sooner_and_goes_first(self) -> None:
        crowd = load(2, rate=[5.0, 30.0], buffer=6.0, running=False, places=1)
        assert BufferAware().choose(crowd).tolist() == [1]

    def test_newcomers_wait_while_the_readers_ask_for_all_there_is(self) -> None:
        """Two run at 90 tokens/s each; the readers who have begun ask for 170 of it."""
        begun = load(
            3, received=[9, 9, 0], rate=85.0, buffer=[50.0, 50.0, 0.0], running=[True, True, False], places=2
        )
        assert sorted(BufferAware().choose(begun).tolist()) == [0, 1]
        slower = load(
            3, received=[9, 9, 0], rate=30.0, buffer=[50.0, 50.0, 0.0], running=[True, True, False], places=2
        )
        assert 2 in BufferAware().choose(slower).tolist()

    def test_a_shortage_is_shared(self) -> None:
        """More readers have begun than can be served: the one with the least to read still goes first."""
        crowd = load(
            4, rate=200.0, buffer=[90.0, 90.0, 0.0, 0.0], running=[True, True, False, False], places=2
        )
        assert 2 in BufferAware().choose(crowd).tolist()

    @pytest.mark.parametrize(
        ("copy_s", "back"), [(1e-4, [1, 2, 3, 2]), (float("inf"), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])]
    )
    def test_no_more_come_back_than_their_share_of_the_time_allows(
        self, copy_s: float, back: list[int]
    ) -> None:
        """Ten wait to be loaded for 20 ms each, in a quarter of the time, or to be recomputed for 200 ms each, in a
        tenth of it."""
        crowd = load(
            12,
            received=50,
            buffer=[90.0] * 2 + [0.0] * 10,
            running=[True] * 2 + [False] * 10,
            missing=[0] * 2 + [200] * 10,
            stored=[0] * 2 + [200] * 10,
            copy_s=copy_s,
            token_s=1e-3,
            places=11,
            tokens=200,
        )
        policy = BufferAware()
        for number, expected in enumerate(back):
            chosen = policy.choose(replace(crowd, now_s=0.2 * number))
            assert np.count_nonzero(~crowd.running[chosen]) == expected

    def test_newcomers_wait_where_taking_turns_costs_more_than_the_buffers_hold(self) -> None:
        """A turn of three requests, whose caches take 200 ms each to recompute, lasts six seconds."""
        crowd = load(
            3,
            received=[90, 90, 0],
            buffer=[30.0, 30.0, 0.0],
            running=[True, True, False],
            tokens=200,
            missing=[0, 0, 20],
            token_s=1e-3,
            copy_s=float("inf"),
            places=2,
        )
        assert sorted(BufferAware().choose(crowd).tolist()) == [0, 1]
        assert 2 in BufferAware().choose(replace(crowd, copy_s=1e-4, stored=np.array([200, 200, 0]))).tolist()

    @pytest.mark.parametrize(
        "wrong", [{"interval_s": 0}, {"conservativeness": 0.5}, {"shrink": 2}, {"headroom": 0}]
    )
    def test_nonsense_is_refused(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ValueError, match="needs|headroom"):
            BufferAware(**wrong)


class TestAndes:
    def test_it_serves_who_is_behind_and_small(self) -> None:
        crowd = load(
            3,
            age_s=[10.0, 10.0, 10.0],
            received=[200, 10, 10],
            tokens=[160, 160, 40],
            running=[True, False, False],
            places=1,
        )
        assert Andes(preemptions=1.0).choose(crowd).tolist() == [2]

    def test_where_all_that_run_just_fit_they_go_on_in_order(self) -> None:
        just = load(3, arrival=[2, 0, 1], tokens=[100, 200, 300], capacity=600, places=3)
        assert Andes(preemptions=1.0).choose(just).tolist() == [1, 2, 0]

    def test_it_preempts_no_more_than_it_may(self) -> None:
        crowd = load(8, age_s=10.0, received=[200] * 4 + [0] * 4, running=[True] * 4 + [False] * 4, places=4)
        chosen = Andes(preemptions=0.25).choose(crowd)
        assert np.count_nonzero(crowd.running[chosen]) >= 3

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ValueError, match="needs"):
            Andes(preemptions=2)

    def test_a_prompt_that_takes_longer_than_the_interval_gains_a_tenth_of_it(self) -> None:
        waiting = load(1, running=False, received=0, missing=100_000, interval_s=2.0, age_s=0.0, rate=10.0)
        tokens = 0.1 * 2.0 / (0.01 + 1e-4)
        assert Andes(ttft_s=1.0)._gain(waiting) == pytest.approx([min(tokens / 10.0, 1.0)])


class TestDecayingReserve:
    def test_room_for_newcomers_grows_as_the_reserve_decays(self) -> None:
        crowd = load(
            3,
            running=[True, False, False],
            tokens=100,
            received=[100, 0, 0],
            longest=300,
            capacity=640,
            base_s=0.1,
            token_s=0.0,
        )
        policy = DecayingReserve(start=0.75, least=0.25, steps=10)
        assert policy.choose(crowd).tolist() == [0]  # 100 + 0.75 × 200 + 100 + 300 > 640
        assert policy.choose(replace(crowd, now_s=0.9)).tolist() == [0, 1]  # 100 + 0.3 × 200 + 400
        assert policy.choose(replace(crowd, now_s=99.0)).tolist() == [0, 1]

    def test_too_little_room_sends_the_youngest_output_away_and_raises_the_reserve(self) -> None:
        crowd = load(3, tokens=[100, 100, 110], received=[40, 20, 20], longest=100, capacity=250)
        policy = DecayingReserve(least=0.0)
        assert policy.choose(replace(crowd, now_s=1e6)).tolist() == [0, 1]
        after = load(2, running=[True, False], tokens=[100, 110], received=[40, 0], longest=100, capacity=300)
        assert policy.choose(replace(after, now_s=1e6)).tolist() == [0]  # 100 + 0.47 × 60 + 110 + 100 > 300
        assert policy.choose(replace(after, now_s=1e6, capacity=340)).tolist() == [0, 1]  # 338
        empty = load(2, running=False, tokens=110, received=0, longest=100, capacity=300)
        assert policy.choose(replace(empty, now_s=1e6)).tolist() == [0]

    def test_newcomers_take_the_places_that_are_left(self) -> None:
        crowd = load(4, running=[True, False, False, False], received=[50, 0, 0, 0], places=3)
        assert DecayingReserve().choose(crowd).tolist() == [0, 1, 2]

    def test_a_request_that_never_fits_runs_alone(self) -> None:
        assert DecayingReserve().choose(load(2, running=False, capacity=10)).tolist() == [0]

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ValueError, match="needs 0 ≤ least ≤ start"):
            DecayingReserve(start=0.1, least=0.2)


class TestShortestRemaining:
    def test_the_nearest_to_its_limit_runs(self) -> None:
        crowd = load(3, received=[0, 90, 40], longest=[120, 200, 100], running=[True, False, False], places=2)
        assert ShortestRemaining().choose(crowd).tolist() == [2, 1]

    def test_nonsense_is_refused(self) -> None:
        with pytest.raises(ValueError, match="interval_s"):
            ShortestRemaining(interval_s=0)


@pytest.mark.parametrize("wrong", [{"unread": 0.0}, {"tolerated": 0.0}, {"tolerated": 1.1}])
def test_nobody_is_content_with_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs unread > 0 and 0 < tolerated ≤ 1"):
        Resting(**wrong)


def test_requests_that_will_hold_nothing_all_run_together() -> None:
    assert load(3, tokens=0, received=256, places=2).width == 2


def test_requests_far_ahead_of_their_readers_rest_while_others_wait() -> None:
    """Though there is room for all; buffer_aware lets them go on."""
    seen = load(3, running=[True, True, False], buffer=[40.0, 5.0, 0.0], received=[60, 20, 0])
    assert {*BufferAware().choose(seen).tolist()} == {0, 1, 2}
    assert {*Resting().choose(seen).tolist()} == {1, 2}
    assert {*Resting(unread=0.5).choose(seen).tolist()} == {0, 1, 2}, "64 tokens may be unread"


def test_readers_who_are_content_with_less_let_newcomers_in() -> None:
    """Two readers ask for 190 of 200 tokens/s."""
    seen = load(
        4,
        running=[True, True, False, False],
        received=[50, 50, 0, 0],
        buffer=60.0 * np.array([1, 1, 0, 0]),
        rate=95.0,
        places=2,
        base_s=0.01,
        token_s=0.0,
    )
    assert not {2, 3} & {*BufferAware().choose(seen).tolist()}
    assert {2, 3} & {*Resting(unread=10.0, tolerated=0.4).choose(seen).tolist()}
