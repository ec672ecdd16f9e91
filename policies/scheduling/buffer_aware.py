"""TokenFlow's buffer-aware scheduling: memory and time go to whoever's reader is about to run dry.

Source: Chen et al., "TokenFlow: Responsive LLM Text Streaming Serving under Request Burst via Preemptive Scheduling",
sections 3.3 and 4. Where the paper leaves a choice, it is said at the place.
"""

from __future__ import annotations

import numpy as np

from tandem.policies.reader.quality import token_value
from tandem.policies.scheduling.base import Bools, EngineLoad, Floats, Ints, fit, scheduling

EXCHANGE = 0.25  # of the time: what bringing requests back may take
HOLD = 1.0  # tokens: whoever runs goes on where it makes next to no difference


@scheduling.register("buffer_aware")
class BufferAware:
    """Working set, then buffer balancing.

    interval_s: Δt between decisions.
    conservativeness: μ ≥ 1, how many times over a buffer must cover what a preemption costs before its request may be
        displaced.
    stall_weight: γ, tokens that an imminent stall is worth.
    start_weight: the same for a first token that is awaited.
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

    def choose(self, load: EngineLoad) -> Ints:
        if load.running.all() and len(load) <= load.places and int(load.tokens.sum()) <= load.capacity:
            return load.arrival.argsort(kind="stable")  # no stress: nobody waits, memory suffices
        cost_s = self._return_s(load)
        safe = load.running & (load.buffer < self._needed(load, cost_s))  # must not be displaced
        width = load.width
        served = self._working_set(load, width)
        utility = self._utility(load, cost_s, width)
        # Those who must not be displaced, then the rest of the working set by utility; nobody else.
        # Among equals the oldest: a millionth of a token decides that, cheaper than a second sort key.
        urgency = np.where(safe, -1e9 + load.buffer / load.rate, -utility) + 1e-6 * load.arrival
        order = urgency.argsort()
        served |= safe
        served[self._late(load, cost_s, urgency, served)] = False
        order = order[served[order]] if served.any() else order[:1]
        return self._swap(load, fit(load, order), order, utility, safe)

    def _return_s(self, load: EngineLoad) -> Floats:
        """Until each could go on: the missing tokens loaded or recomputed, whichever is sooner (TokenFlow's
        section 4.2.3). For those that run, what coming back would take if they were displaced."""
        missing = np.where(load.running, load.tokens, load.missing)
        stored = np.where(load.running, load.tokens, load.stored)
        recompute_s = missing * load.token_s
        if load.copy_s == float("inf"):
            return recompute_s
        load_s = load.copy_queue_s + stored * load.copy_s + (missing - stored) * load.token_s
        return np.minimum(recompute_s, load_s)

    def _late(self, load: EngineLoad, return_s: Floats, urgency: Floats, served: Bools) -> Ints:
        """No more come back at a time than can be loaded or computed again in a part of the time until the next
        decision: else the link and the engine would do little but exchange them. The others wait."""
        coming = np.flatnonzero((served > load.running) & (return_s > 0) & (load.received > 0))
        coming = coming[urgency[coming].argsort()]
        own_s = return_s[coming] - load.copy_queue_s * (load.stored[coming] > 0)
        before_s = load.copy_queue_s + own_s.cumsum() - own_s  # a long one must come back too
        most_s = EXCHANGE * load.interval_s
        late: Ints = coming[before_s + np.minimum(own_s, most_s) > most_s]
        return late

    def _needed(self, load: EngineLoad, return_s: Floats) -> Floats:
        """Unread tokens a request must have to be displaced: b ≥ μ · r · (τ_evict + τ_load + τ_schedule). Write-through
        makes eviction free; it comes back at the decision after the next at the earliest."""
        return self._conservativeness * load.rate * (return_s + load.interval_s + load.base_s)

    def _working_set(self, load: EngineLoad, width: int) -> Bools:
        """Who is served at all: whoever has begun to read, and newcomers in order of arrival as long as the readers'
        rates stay within the capacity, Σ r ≤ Γ (TokenFlow's equation (6)), and there is a place, W_current <
        W_scheduled.

        Where those who have begun exceed the capacity already, nobody is admitted by preemption. The paper then
        serves in order of arrival; here they go on to be balanced, so that a shortage is shared: in order of
        arrival some would be given more than they can read while others wait for all of it.
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
        # Nobody must run dry while the newcomers' prompts are computed and all take turns: evenly spread over a turn
        # readers have half of it before them.
        turn_s = load.interval_s * (begun + np.arange(1, len(new) + 1)) / width
        needed = rates * turn_s / 2 + claimed * load.token_s * load.missing[new].cumsum()
        fits = (rates <= capacity) & (needed <= float(load.buffer.sum()))
        fits[: max(0, width - begun)] = True  # who fits beside all others costs them nothing
        if self._shrink:
            static = max(width, len(load))  # host memory takes the rest: M is no device's alone here
            scheduled = static - self._shrink * (static - int(np.count_nonzero(load.running)))
            fits[max(0, int(scheduled) - begun) :] = False
        started[new[fits]] = True
        return started

    def _utility(self, load: EngineLoad, return_s: Floats, width: int) -> Floats:
        """What running through the next interval adds: U_i = v_i · t − γ · φ(b_i), with the tokens it brings and
        the buffer predicted for its end, less the same without running (TokenFlow's equation (3)). φ(b) = e^−b.

        A request that must come back first brings its tokens later: they count in proportion.
        """
        dt = load.interval_s
        waits_s = np.where(load.running, 0.0, return_s)
        step_s = load.base_s + load.token_s * min(width, len(load))
        # who comes back misses a step while it is fetched, and so does the engine
        gained = (dt - np.where(load.running, 0.0, min(step_s, dt))) / step_s * dt / (dt + waits_s)
        eaten = np.minimum(load.rate * dt, load.buffer)
        without = load.buffer - eaten
        value = token_value(load.buffer, load.expected)
        risk = np.exp(-without) - np.exp(-(without + gained))
        # A newcomer has no stall to fear yet; its prefill would slow those who have.
        weight = np.where(load.received > 0, self._stall_weight, self._start_weight)
        utility: Floats = value * gained + weight * risk + HOLD * load.running
        return utility

    def _swap(self, load: EngineLoad, chosen: Ints, order: Ints, utility: Floats, safe: Bools) -> Ints:
        """Local search: the last that was chosen for the first that was not, where that adds utility."""
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
