"""Processor of a device: its jobs, one at a time or in batches, and their durations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tandem.cluster.link.timer import Timer, precise_timer


class ProcessorJob:
    """A job of the processor.

    on_start: called when the processor begins with it.
    decodes: whether it decodes, beside other jobs that do.
    start_s: when the processor began with it; None before.
    sequences: number of sequences decoded then, its own included.
    over: whether it is done or given up.
    """

    __slots__ = ("decodes", "on_start", "over", "sequences", "start_s")

    def __init__(self, on_start: Callable[[], None] | None = None, decodes: bool = False) -> None:
        self.on_start, self.decodes = on_start, decodes
        self.start_s: float | None = None
        self.sequences = 1
        self.over = False

    def notify(self, on_start: Callable[[], None]) -> None:
        """Call `on_start` when the processor begins with the job, which must not have begun."""
        self.on_start = on_start


class Processor:
    """Runs jobs one after another, first come, first served, but up to `batch` decoding jobs at once; or, if
    `parallel`, all at once."""

    def __init__(self, parallel: bool, batch: int = 1) -> None:
        self._parallel, self._batch = parallel, batch
        self._decoding = False  # so do those that run
        self._waiting: deque[ProcessorJob] = deque()
        self._running = 0
        self._since_s = self._busy_s = 0.0
        self._timer: Timer | None = None

    def follow(self, parallel: bool, batch: int) -> None:
        """Take over other limits, from the next job on."""
        self._parallel, self._batch = parallel, batch

    @property
    def timer(self) -> Timer:
        """Timer of the running event loop."""
        if self._timer is None:
            self._timer = precise_timer()
        return self._timer

    @property
    def busy_s(self) -> float:
        """Seconds in which at least one job ran, up to the end of the last."""
        return self._busy_s

    def start(self, job: ProcessorJob) -> None:
        """Start a job now, or when its turn comes."""
        if self._waiting or not self._has_room(job):
            self._waiting.append(job)
        else:
            self._begin(job)

    def _has_room(self, job: ProcessorJob) -> bool:
        if self._parallel or not self._running:
            return True
        return self._decoding and job.decodes and self._running < self._batch

    def finish(self, job: ProcessorJob) -> None:
        """End a job that is done or given up, begun or not; a second call does nothing."""
        if job.over:
            return
        job.over, job.on_start = True, None
        if job.start_s is not None:
            self._running -= 1
            if not self._running:
                self._busy_s += self.timer.time() - self._since_s
        while self._waiting and (self._waiting[0].over or self._has_room(self._waiting[0])):
            if not (following := self._waiting.popleft()).over:
                self._begin(following)

    def _begin(self, job: ProcessorJob) -> None:
        job.start_s = self.timer.time()
        if not self._running:
            self._since_s, self._decoding = job.start_s, job.decodes
        self._running += 1
        job.sequences = self._running
        if job.on_start is not None:
            job.on_start()
