"""Job queue: which of the sketches that wait to be expanded an idle device takes.

PICE (Zhan et al. 2025), algorithm 1: lists by expected length, so that the answers of a batch end together; a device
takes its batch from the list with the most jobs. Beyond the paper, within a list the job whose reader runs dry first
goes first, and no job starves: the paper's algorithm may leave a job of unusual length in its short list for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Protocol

from tandem.policies.base import Registry

CAPACITY = 4
"""Most jobs that may wait: as many as there are devices is best (PICE, section V-D); the paper has four."""


@dataclass(frozen=True, eq=False, slots=True)
class SketchJob:
    """A sketch to be expanded.

    key: the caller's own.
    tokens: l, expected length of the answer, at least 1.
    since_s: when it was added.
    dry_at_s: when its reader runs dry; infinite without a reader.
    """

    key: int
    tokens: int
    since_s: float
    dry_at_s: float = inf


def anything(job: SketchJob) -> bool:
    return True


class JobQueue(Protocol):
    """Queue of jobs for devices. Times are of the caller's clock."""

    @property
    def capacity(self) -> int:
        """Jobs that may wait; if that many will wait, the LLM is to answer in full."""
        ...

    def add(self, job: SketchJob) -> None:
        """Add a job, in order of time, even beyond the capacity: a written sketch is not thrown away."""
        ...

    def take(self, batch: int, now_s: float, fits: Callable[[SketchJob], bool] = anything) -> list[SketchJob]:
        """Remove and return jobs for an idle device, at most `batch` of those that fit it, at least one if any does.
        Linear in the number of waiting jobs."""
        ...

    def remove(self, job: SketchJob) -> bool:
        """Remove a job; False if it does not wait."""
        ...

    def __len__(self) -> int:
        """Return the number of waiting jobs."""
        ...


job_queue: Registry[JobQueue] = Registry("job_queue")


@job_queue.register("fifo")
class FirstInFirstOut:
    """Serves jobs in order of arrival, whatever their lengths.

    capacity: jobs that may wait.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        _check_capacity(capacity)
        self._capacity = capacity
        self._jobs: dict[SketchJob, None] = {}

    @property
    def capacity(self) -> int:
        return self._capacity

    def add(self, job: SketchJob) -> None:
        self._jobs[job] = None

    def take(self, batch: int, now_s: float, fits: Callable[[SketchJob], bool] = anything) -> list[SketchJob]:
        taken = [job for job in self._jobs if fits(job)][:batch]
        for job in taken:
            del self._jobs[job]
        return taken

    def remove(self, job: SketchJob) -> bool:
        waited = job in self._jobs
        self._jobs.pop(job, None)
        return waited

    def __len__(self) -> int:
        return len(self._jobs)


@job_queue.register("multi_list")
class MultiList:
    """Lists for lengths below 2, 4, 8, … tokens; serves the longest list, among equals the one with the oldest first
    job.

    capacity: jobs that may wait.
    patience_s: jobs that have waited longer go before all others, the oldest first; from then on at most as many
        batches go before a job as there are older jobs.
    """

    def __init__(self, capacity: int = CAPACITY, patience_s: float = 10.0) -> None:
        _check_capacity(capacity)
        if not patience_s >= 0:
            raise ValueError(f"patience_s must not be below 0, not {patience_s}")
        self._capacity, self._patience_s = capacity, patience_s
        self._jobs: dict[SketchJob, None] = {}  # oldest first

    @property
    def capacity(self) -> int:
        return self._capacity

    def add(self, job: SketchJob) -> None:
        self._jobs[job] = None

    def take(self, batch: int, now_s: float, fits: Callable[[SketchJob], bool] = anything) -> list[SketchJob]:
        lists: dict[int, list[SketchJob]] = defaultdict(list)  # in order of their first jobs
        for job in self._jobs:
            if fits(job):
                lists[job.tokens.bit_length()].append(job)
        if not lists:
            return []
        late_s = now_s - self._patience_s
        served = next(iter(lists.values()))
        if served[0].since_s >= late_s:
            served = max(lists.values(), key=len)
        late = [job for job in served if job.since_s < late_s]
        others = sorted((job for job in served if job.since_s >= late_s), key=attrgetter("dry_at_s"))
        taken = [*late, *others][:batch]
        for job in taken:
            del self._jobs[job]
        return taken

    def remove(self, job: SketchJob) -> bool:
        return self._jobs.pop(job, job) is None

    def __len__(self) -> int:
        return len(self._jobs)


def _check_capacity(capacity: int) -> None:
    if capacity < 1:
        raise ValueError(f"at least 1 job must be able to wait, not {capacity}")
