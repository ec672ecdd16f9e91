"""Rivals of Tandem's autoscaling that are in no application: queue scaling as KEDA's, and an oracle."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from tandem.policies.autoscaling import PoolState
from tandem.simulator.workload import Request

TOLERANCE = 0.1
"""Relative difference that is none, as for Kubernetes' horizontal pod autoscaler."""


class QueueScaling:
    """KEDA's scaling by a queue's length, through Kubernetes' horizontal pod autoscaler: every `every_s` as many
    replicas as the length over `target`, within a tolerance none; fewer only as the most that was wanted in `stable_s`.

    metric: "waiting", tokens of prompts that wait or are computed, or "running", sessions in all.
    """

    def __init__(
        self, target: float, metric: str = "waiting", stable_s: float = 300.0, every_s: float = 15.0
    ) -> None:
        self._target, self._metric, self._stable_s, self._every_s = target, metric, stable_s, every_s
        self._wanted: deque[tuple[float, float]] = deque()
        self._at_s, self._decision = -math.inf, 0.0

    def desired(self, pool: PoolState) -> float:
        """Return how many replicas the pool should have."""
        if pool.now_s - self._at_s < self._every_s:
            return self._decision or pool.target
        self._at_s = pool.now_s
        key = "backlog" if self._metric == "waiting" else "sessions"
        length = sum(getattr(replica, key) for replica in pool.replicas)
        wanted = math.ceil(length / self._target)
        if abs(length / self._target / pool.target - 1) <= TOLERANCE:
            wanted = pool.target
        self._wanted.append((pool.now_s, max(1, wanted)))
        while self._wanted[0][0] < pool.now_s - self._stable_s:
            self._wanted.popleft()
        most = max(count for _, count in self._wanted)
        self._decision = wanted if wanted >= pool.target else min(pool.target, most)
        return self._decision


class Oracle:
    """Foresight: knows who will come, and how long their answers get. The pool gets so many replicas that the work of
    every `window_s` seconds until the start of another could end, and `hold_s` beyond, fits in `load` of them; what
    waits now, too.

    decode_s: seconds of a server that a token of an answer takes; token_s: that one of a prompt takes.
    start_s: seconds that a start takes.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        token_s: float,
        decode_s: float,
        start_s: float,
        load: float,
        window_s: float = 15.0,
        hold_s: float = 30.0,
    ) -> None:
        seconds = int(max(r.arrival_s for r in requests)) + 2
        work = np.zeros(seconds)
        for r in requests:
            work[int(r.arrival_s)] += r.prompt_tokens * token_s + r.output_tokens * decode_s
        window = max(1, int(window_s))
        total = np.concatenate(([0.0], work.cumsum(), np.full(window, work.sum())))
        self._rate = (total[window:] - total[:-window]) / window  # of the window that begins then
        self._window, self._ahead = window, int(start_s + hold_s)
        self._load = load
        self._token_s = token_s

    def desired(self, pool: PoolState) -> float:
        """Return how many replicas the pool should have."""
        now = int(pool.now_s)
        most = float(self._rate[max(0, now - self._window) : now + self._ahead + 1].max(initial=0.0))
        return max(1.0, most / self._load)
