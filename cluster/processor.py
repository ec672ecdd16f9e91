"""What a device computes with: its jobs one at a time, and the time that they take it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from cluster.timer import Timer, precise_timer


class Job:
    """start_s: when the processor began with it; None before. on_start: called then."""

    __slots__ = ("on_start", "over", "start_s")

    def __init__(self, on_start: Callable[[], None] | None = None) -> None:
        self.on_start = on_start
        self.start_s: float | None = None
        self.over = False

    def notify(self, on_start: Callable[[], None]) -> None:
        """Have `on_start` called when the processor begins with the job, which it has not yet."""
        self.on_start = on_start


class Processor:
    """Does its jobs one after another, first come, first served; or, `parallel`, all at once."""

    def __init__(self, parallel: bool) -> None:
        self._parallel = parallel
        self._waiting: deque[Job] = deque()
        self._running = 0
        self._since_s = self._busy_s = 0.0
        self._timer: Timer | None = None

    @property
    def timer(self) -> Timer:
        """The timer of the event loop that it is used on."""
        if self._timer is None:
            self._timer = precise_timer()
        return self._timer

    @property
    def busy_s(self) -> float:
        """Time in which at least one job ran, up to the last one's end."""
        return self._busy_s

    def start(self, job: Job) -> None:
        """Do a job: now, or when its turn comes."""
        if self._running and not self._parallel:
            self._waiting.append(job)
        else:
            self._begin(job)

    def finish(self, job: Job) -> None:
        """A job is done or given up, begun or not; a second time does nothing."""
        if job.over:
            return
        job.over = True
        if job.start_s is None:
            return
        self._running -= 1
        if not self._running:
            self._busy_s += self.timer.time() - self._since_s
        while self._waiting and not self._running:
            if not (following := self._waiting.popleft()).over:
                self._begin(following)

    def _begin(self, job: Job) -> None:
        job.start_s = self.timer.time()
        if not self._running:
            self._since_s = job.start_s
        self._running += 1
        if job.on_start is not None:
            job.on_start()
