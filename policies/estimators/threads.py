"""Threads of an engine's steps, chosen by the measured times.

A step of few positions has hundreds of barriers. Where other programs keep a core busy, a thread on that core is late
at each of them, and fewer threads are faster. The machine does not say so: now and then other numbers are tried.
"""

from __future__ import annotations

TRIAL = 4
"""Steps of a trial."""
RATE = 0.1
"""Weight of a new step among those with as many threads."""


class _Size:
    """Steps of about one size.

    times: number of threads → expected seconds of a step.
    since_s: number of threads → seconds of steps since it was last used.
    trial: steps left with the present number of threads before another may be chosen.
    """

    def __init__(self, most: int) -> None:
        self.times: dict[int, float] = {}
        self.since_s: dict[int, float] = {}
        self.threads, self.trial = most, TRIAL


class StepThreads:
    """The number of threads with which steps are fastest, by their size.

    most: greatest number; it is halved for each further choice.
    explore: share of the time that trials may cost.
    """

    def __init__(self, most: int, explore: float = 0.005) -> None:
        self._counts, self._explore = [most], explore
        while self._counts[-1] > 1:
            self._counts.append(self._counts[-1] // 2)
        self._sizes: dict[int, _Size] = {}

    def choose(self, positions: int) -> int:
        """Return the number of threads for a step of `positions`."""
        size = self._size(positions)
        if size.trial == 0:
            best = min(size.times, key=lambda count: size.times[count])
            due = [count for count in self._counts if count != best and self._is_due(size, count, best)]
            size.threads = max(due, key=lambda count: size.since_s[count], default=best)
            if size.threads != best:
                size.trial = TRIAL
                size.times.pop(size.threads, None)
        return size.threads

    def note(self, positions: int, seconds: float) -> None:
        """Record the time of the step that was chosen for last."""
        size = self._size(positions)
        threads = size.threads
        before = size.times.get(threads)
        if size.trial and before is not None:  # the mean of the trial
            done = TRIAL - size.trial
            size.times[threads] = (before * done + seconds) / (done + 1)
        else:
            size.times[threads] = seconds if before is None else before + RATE * (seconds - before)
        size.trial = max(0, size.trial - 1)
        for count in self._counts:
            size.since_s[count] = 0.0 if count == threads else size.since_s.get(count, 0.0) + seconds

    def _size(self, positions: int) -> _Size:
        return self._sizes.setdefault(positions.bit_length(), _Size(self._counts[0]))

    def _is_due(self, size: _Size, count: int, best: int) -> bool:
        """Whether a trial of another number of threads costs no more than it may; the first one always."""
        if (before_s := size.times.get(count)) is None:
            return True
        return TRIAL * (before_s - size.times[best]) <= self._explore * size.since_s[count]
