"""Ray Serve's own policy: a target number of ongoing requests per replica."""

from __future__ import annotations

from collections import deque

from tandem.policies.autoscaling.base import PoolState, autoscaling


@autoscaling.register("ongoing_requests")
class OngoingRequests:
    """Keeps each replica at `target` sessions, averaged over the last `look_back_s` seconds."""

    def __init__(self, target: float = 2.0, look_back_s: float = 30.0) -> None:
        if not target > 0:
            raise ValueError(f"target must be above 0 sessions, not {target}")
        self._target, self._look_back_s = target, look_back_s
        self._seen: deque[tuple[float, float]] = deque()  # time, and sessions at it

    def desired(self, pool: PoolState) -> float:
        seen = self._seen
        seen.append((pool.now_s, sum(r.sessions for r in pool.replicas) + pool.waiting))
        while seen[0][0] < pool.now_s - self._look_back_s:
            seen.popleft()
        return sum(sessions for _, sessions in seen) / len(seen) / self._target
