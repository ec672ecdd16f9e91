"""Job queues: nothing is lost, nobody starves, and batches are of a kind."""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tandem.policies.sketch.dispatch import JobQueue, MultiList, SketchJob, job_queue

lengths = st.integers(1, 2000)


class Call(NamedTuple):
    """One that a job queue may get."""

    method: str
    arguments: tuple[Any, ...]


def calls() -> st.SearchStrategy[Call]:
    """Any call; times go their own way."""
    jobs = st.builds(SketchJob, st.integers(), lengths, st.floats(0, 100), st.floats(0, 100) | st.just(inf))
    return st.one_of(
        st.builds(Call, st.just("add"), st.tuples(jobs)),
        st.builds(Call, st.just("remove"), st.tuples(jobs)),
        st.builds(Call, st.just("take"), st.tuples(st.integers(1, 6), st.floats(0, 200))),
    )


class Queueing(RuleBasedStateMachine):
    """Any use of a queue, beside a plain list of what must be in it."""

    name = ""
    patience_s = 10.0

    @initialize(capacity=st.integers(1, 12))
    def begin(self, capacity: int) -> None:
        self.queue: JobQueue = job_queue.create(self.name, capacity=capacity)
        self.capacity, self.now_s = capacity, 0.0
        self.waiting: list[SketchJob] = []
        self.passed: dict[
            SketchJob, int
        ] = {}  # batches since a job became overdue, with those that are older

    @rule(tokens=lengths, dry_s=st.floats(0, 50) | st.just(inf))
    def add(self, tokens: int, dry_s: float) -> None:
        job = SketchJob(len(self.waiting), tokens, self.now_s, self.now_s + dry_s)
        self.queue.add(job)
        self.waiting.append(job)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(job)
        assert not self.queue.remove(job), "it is gone"
        self.waiting.remove(job)

    @rule(batch=st.integers(1, 4))
    def take(self, batch: int) -> None:
        overdue = [job for job in self.waiting if job.since_s < self.now_s - self.patience_s]
        for job in overdue:
            self.passed.setdefault(job, self.waiting.index(job))
        taken = self.queue.take(batch, self.now_s)
        assert bool(taken) == bool(self.waiting), "an idle device has work if there is any"
        assert len(set(taken)) == len(taken) <= batch
        assert set(taken) <= set(self.waiting)
        for job in taken:
            self.waiting.remove(job)
        self.check_batch(taken, overdue, batch)
        for job in overdue:
            if job in self.waiting:
                self.passed[job] -= 1
                assert self.passed[job] >= 0, "no more batches go before it than there are older jobs"

    def check_batch(self, taken: list[SketchJob], overdue: list[SketchJob], batch: int) -> None:
        """Check the policy's promise for each batch."""

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "waiting"):
            assert len(self.queue) == len(self.waiting)
            assert self.queue.capacity == self.capacity


class MultiListQueueing(Queueing):
    name = "multi_list"

    def check_batch(self, taken: list[SketchJob], overdue: list[SketchJob], batch: int) -> None:
        if not taken:
            return
        (kind,) = {job.tokens.bit_length() for job in taken}
        assert max(job.tokens for job in taken) < 2 * min(job.tokens for job in taken)
        left = [job for job in self.waiting if job.tokens.bit_length() == kind]
        assert len(taken) == batch or not left, "a batch is as large as its list allows"
        if overdue:
            assert taken[0] is overdue[0], "the oldest of those who have waited for too long"
            return
        sizes = [len([j for j in (*self.waiting, *taken) if j.tokens.bit_length() == k]) for k in range(12)]
        assert sizes[kind] == max(sizes), "PICE's algorithm 1"
        assert all(job.dry_at_s <= other.dry_at_s for job in taken for other in left), "the most urgent"


class FirstInFirstOutQueueing(Queueing):
    name = "fifo"

    def check_batch(self, taken: list[SketchJob], overdue: list[SketchJob], batch: int) -> None:
        times = [job.since_s for job in (*taken, *self.waiting)]
        assert times == sorted(times)


TestMultiList = MultiListQueueing.TestCase
TestFirstInFirstOut = FirstInFirstOutQueueing.TestCase


def keys(jobs: list[SketchJob]) -> list[object]:
    return [job.key for job in jobs]


def test_the_longest_list_is_served_then_the_older() -> None:
    queue = MultiList(capacity=9)
    for key, tokens in (("a", 100), ("b", 300), ("c", 310), ("d", 120), ("e", 400)):
        queue.add(SketchJob(key, tokens, 0.0))
    assert keys(queue.take(2, 1.0)) == ["b", "c"]
    assert keys(queue.take(4, 1.0)) == ["a", "d"]
    assert keys(queue.take(4, 1.0)) == ["e"]
    assert queue.take(4, 1.0) == []


def test_whose_reader_runs_dry_first_goes_first_unless_somebody_has_waited_for_too_long() -> None:
    for now_s, first in ((9.0, ["hurried", "calm"]), (10.5, ["early", "hurried"])):
        queue = MultiList(capacity=9, patience_s=10.0)
        queue.add(SketchJob("early", 300, 0.0))
        queue.add(SketchJob("calm", 300, 1.0, dry_at_s=30.0))
        queue.add(SketchJob("hurried", 300, 2.0, dry_at_s=12.0))
        assert keys(queue.take(2, now_s)) == first


def test_the_papers_algorithm_starves_what_this_one_does_not() -> None:
    """Two jobs of the usual length come for each batch, so their list is always the longest."""
    waited = {}
    for patience_s in (10.0, inf):
        queue = MultiList(capacity=9, patience_s=patience_s)
        rare = SketchJob("rare", 2000, 0.0)
        queue.add(rare)
        waited[patience_s] = inf
        for second in range(1, 200):
            for _ in range(2 if len(queue) < 8 else 1):
                queue.add(SketchJob("usual", 300, float(second)))
            if rare in queue.take(1, float(second)):
                waited[patience_s] = second
                break
    assert waited == {10.0: 11, inf: inf}


@pytest.mark.parametrize("name", list(job_queue))
def test_a_device_takes_what_fits_it_and_leaves_the_rest_in_its_place(name: str) -> None:
    queue = job_queue.create(name, capacity=8)
    for i in range(6):
        queue.add(SketchJob(i, 300, float(i)))
    assert keys(queue.take(2, 6.0, lambda job: job.key % 2 == 1)) == [1, 3]
    assert queue.take(2, 6.0, lambda job: job.key > 6) == []
    assert keys(queue.take(9, 6.0)) == [0, 2, 4, 5]


@pytest.mark.parametrize("name", list(job_queue))
def test_a_queue_without_room_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1 job"):
        job_queue.create(name, capacity=0)


def test_patience_is_no_negative_time() -> None:
    with pytest.raises(ValueError, match="patience_s"):
        MultiList(patience_s=-1.0)
