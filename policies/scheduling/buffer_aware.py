"""TokenFlow's buffer-aware scheduling: memory and time go to requests whose readers are about to run dry.

Source: Chen et al., "TokenFlow: Responsive LLM Text Streaming Serving under Request Burst via Preemptive Scheduling",
    sections 3.3 and 4. Choices that the paper leaves open are noted in place.
"""

from __future__ import annotations

import numpy as np

from tandem.policies.reader.quality import token_value
from tandem.policies.scheduling.base import Bools, EngineLoad, Floats, Ints, fit, scheduling

LOADING = 0.25  # share of the link's time that bringing requests back may take
RECOMPUTING = 0.1  # share of the engine's time that it may take, where there is no link to host memory
UNUSED_S = 1.0  # time in which none came back that counts for later
HOLD = 1.0  # tokens: bonus of running requests, against needless exchanges


@scheduling.register("buffer_aware")
class BufferAware:
    """Working set, then buffer balancing.

    interval_s: Δt between decisions.
    conservativeness: μ ≥ 1, how many times over a buffer must cover the cost of a preemption before its request may be
        displaced.
    stall_weight: γ, value of an imminent stall in tokens.
    start_weight: value of an awaited first token in tokens.
    shrink: λ of TokenFlow's equation (5).
    headroom: share of the measured capacity Γ that readers may claim.
    """

    def __init__(
        self,
        interval_s: float = 0.2,
        conservativeness: float = 2.0,
        stall_weight: float = 50.0,
        start_weight: float = 4.0,
        shrink: float = 0.0,
        headroom: float = 0.95,
    ) -> None:
        if interval_s <= 0 or conservativeness < 1 or stall_weight < 0 or not 0 <= shrink <= 1:
            raise ValueError(
                "needs interval_s > 0, conservativeness ≥ 1, stall_weight ≥ 0 and 0 ≤ shrink ≤ 1, not "
                f"{interval_s}, {conservativeness}, {stall_weight}, {shrink}"
            )
        if not 0 < headroom <= 1:
            raise ValueError(f"headroom must be above 0 and at most 1, not {headroom}")
        self.interval_s, self._conservativeness, self._stall_weight = (
            interval_s,
            conservativeness,
            stall_weight,
        )
        self._start_weight, self._shrink, self._headroom = start_weight, shrink, headroom
        self._returns_at = 0.0  # when the next request may come back

    def choose(self, load: EngineLoad) -> Ints:
        if load.running.all() and len(load) <= load.places and int(load.tokens.sum()) <= load.capacity:
            return load.arrival.argsort(kind="stable")  # no stress: no request waits, memory suffices
        cost_s = self._return_s(load)
        safe = load.running & (load.buffer < self._needed(load, cost_s))  # must not be displaced
        width = load.width
        returning_s = cost_s / (RECOMPUTING if load.copy_s == float("inf") else LOADING)
        served = self._working_set(load, width, returning_s)
        utility = self._utility(load, cost_s, width)
        # First requests that must not be displaced, then the rest of the working set by utility.
        # Ties go to the oldest by a millionth of a token, cheaper than a second sort key.
        urgency = np.where(safe, -1e9 + load.buffer / load.rate, -utility) + 1e-6 * load.arrival
        order = urgency.argsort()
        served |= safe
        coming = np.flatnonzero(served & ~load.running & (cost_s > 0) & (load.received > 0))
        coming = coming[urgency[coming].argsort()]
        served[coming[self._return_times(load, returning_s[coming])[:-1] > load.now_s]] = False
        order = order[served[order]] if served.any() else order[:1]
        chosen = self._swap(load, fit(load, order), order, utility, safe)
        self._returns_at = self._return_times(load, returning_s[np.intersect1d(coming, chosen)])[-1]
        return chosen

    def _return_s(self, load: EngineLoad) -> Floats:
        """Return the seconds until each could go on: missing tokens are loaded or recomputed, whichever is sooner
        (TokenFlow, section 4.2.3). For running requests, the cost of coming back if they were displaced."""
        missing = np.where(load.running, load.tokens, load.missing)
        stored = np.where(load.running, load.tokens, load.stored)
        recompute_s = missing * load.token_s
        if load.copy_s == float("inf"):
            return recompute_s
        load_s = load.copy_queue_s + stored * load.copy_s + (missing - stored) * load.token_s
        return np.minimum(recompute_s, load_s)

    def _return_times(self, load: EngineLoad, returning_s: Floats) -> Floats:
        """Return when each of some requests may come back at the earliest, one after the other, and when the next one
        after them; returning_s: of each, as its share of the time allows. So link or engine do not only exchange
        requests."""
        begin_s = max(self._returns_at, load.now_s - UNUSED_S)
        times: Floats = begin_s + np.concatenate(([0.0], returning_s.cumsum()))
        return times

    def _needed(self, load: EngineLoad, return_s: Floats) -> Floats:
        """Return the unread tokens with which a request may be displaced: b ≥ μ · r · (τ_evict + τ_load + τ_schedule).
        Write-through makes eviction free; it comes back at the decision after the next at the earliest."""
        return self._conservativeness * load.rate * (return_s + load.interval_s + load.base_s)

    def _working_set(self, load: EngineLoad, width: int, returning_s: Floats) -> Bools:
        """Return which requests are served: those whose readers have begun, and newcomers in order of arrival as long
        as the readers' rates stay within the capacity, Σ r ≤ Γ (TokenFlow's equation (6)), and there is a place,
        W_current < W_scheduled.

        If the begun ones already exceed the capacity, none is admitted by preemption. The paper then serves in order
        of arrival; here they are still balanced, so that a shortage is shared: in order of arrival some would get more
        than they can read while others wait for all of it.
        """
        started = load.received > 0
        capacity = self._headroom * width / (load.base_s + load.token_s * width)
        claimed = float(load.rate @ started)
        new = np.flatnonzero(~started)
        if not len(new):
            return started
        new = new[load.arrival[new].argsort(kind="stable")]
        begun = int(np.count_nonzero(started))
        rates = claimed + load.rate[new].cumsum()
        # No reader must run dry while the newcomers' prompts are computed and all take turns: spread evenly,
        # readers have half a turn in their buffers. In a turn, each request beyond the width comes back once.
        requests = begun + np.arange(1, len(new) + 1)
        back_s = float(returning_s[started].mean()) if begun else 0.0
        turn_s = np.maximum(load.interval_s * requests / width, requests * back_s * (requests > width))
        needed = rates * turn_s / 2 + claimed * load.token_s * load.missing[new].cumsum()
        fits = (rates <= capacity) & (needed <= float(load.buffer.sum()))
        fits[: max(0, width - begun)] = True  # requests that fit beside all others cost them nothing
        if self._shrink:
            static = max(width, len(load))  # host memory takes the rest: M includes it here
            scheduled = static - self._shrink * (static - int(np.count_nonzero(load.running)))
            fits[max(0, int(scheduled) - begun) :] = False
        started[new[fits]] = True
        return started

    def _utility(self, load: EngineLoad, return_s: Floats, width: int) -> Floats:
        """Return the utility of running through the next interval: U_i = v_i · t − γ · φ(b_i), with its tokens and the
        buffer predicted for its end, less the utility without running (TokenFlow's equation (3)). φ(b) = e^−b.

        Tokens of a request that must come back first arrive later and count in proportion.
        """
        dt = load.interval_s
        waits_s = np.where(load.running, 0.0, return_s)
        step_s = load.base_s + load.token_s * min(width, len(load))
        # a returning request misses a step while it is fetched, and so does the engine
        gained = (dt - np.where(load.running, 0.0, min(step_s, dt))) / step_s * dt / (dt + waits_s)
        eaten = np.minimum(load.rate * dt, load.buffer)
        without = load.buffer - eaten
        value = token_value(load.buffer, load.expected)
        risk = np.exp(-without) - np.exp(-(without + gained))
        # A newcomer cannot stall yet; its prefill would slow requests that can.
        weight = np.where(load.received > 0, self._stall_weight, self._start_weight)
        utility: Floats = value * gained + weight * risk + HOLD * load.running
        return utility

    def _swap(self, load: EngineLoad, chosen: Ints, order: Ints, utility: Floats, safe: Bools) -> Ints:
        """Return `chosen` after a local search: the last chosen one for the first that was not, if utility rises."""
        if len(chosen) == len(order) or len(chosen) < 2:
            return chosen
        last = int(chosen[-1])
        if safe[last]:
            return chosen
        taken = np.zeros(len(load), dtype=np.bool_)
        taken[chosen] = True
        room = load.capacity - int(load.tokens[chosen].sum()) + int(load.tokens[last])
        places = load.places - len(chosen) + 1
        others: list[int] = []
        gained = 0.0
        for i in order[~taken[order]][:8].tolist():
            if len(others) < places and load.tokens[i] <= room and utility[i] > 0:
                others.append(i)
                room -= int(load.tokens[i])
                gained += float(utility[i])
        if gained <= float(utility[last]):
            return chosen
        return np.concatenate((chosen[:-1], np.array(others, dtype=np.int64)))
