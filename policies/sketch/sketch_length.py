"""Sketch length: whether the LLM sketches an answer for small models to expand, and how long the sketch may be.

PICE (Zhan et al. 2025), section IV-A2. Sketch and expansion must not take longer than the LLM would for the whole
answer. Of the lengths for which that holds, the objectives choose one; if there is none, the LLM answers in full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple, Protocol

from tandem.policies.base import Registry
from tandem.policies.sketch.objectives import Outlook, preferred, ranked

SHORTEST = 100
"""Tokens; a shorter answer is hardly longer than its sketch."""
TOGETHER = 1.25
"""Factor between the times of two sketches within which either may be there first."""
BESIDE_SPECULATION = 0.7
"""Share of the LLM's time that sketch and expansion may be expected to take where it speculates: its own answer is then
surer to be there, without loss."""
OBJECTIVES = {"error": 0.05, "throughput": 0.0, "latency": 0.0, "server_cost": 0.0, "edge_cost": 0.0}
"""The paper's objectives, in its order."""
FULL_OBJECTIVES = {"throughput": 0.0, "error": 0.05, "latency": 0.0, "server_cost": 0.0, "edge_cost": 0.0}
"""Objectives where the LLM is full: there every token of a sketch makes all that wait for a place later."""
FULL = 0.9
"""Share of the LLM's places that others have from which it counts as full."""


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model with which devices expand sketches.

    name: unique name.
    cost: c, its duration relative to the LLM's under the LLM's present load.
    capability: quality of its answers with the shortest sufficient sketch, as a share of the LLM's, in [0, 1].
    least_share: that sketch's length, as a share of the answer's.
    """

    name: str
    cost: float
    capability: float
    least_share: float

    def error(self, share: float) -> float:
        """Return the lost quality with a sketch of that share, at least `least_share`. The paper gives no such
        function; this is a line, down to 0 if the LLM writes everything."""
        return (1 - self.capability) * (1 - share) / (1 - self.least_share)


class Coming(NamedTuple):
    """A job for a device.

    due_s: seconds until its sketch is written; 0 if it already waits.
    tokens: expected length of the answer.
    """

    due_s: float
    tokens: int


class Backlog:
    """Backlog of devices over time, in seconds of all of them together.

    works: (seconds from now, seconds of work) of arriving jobs, the soonest first.
    devices: number of devices.
    """

    __slots__ = ("_came_s", "_devices", "_left_s", "_times_s")

    def __init__(self, works: Iterable[tuple[float, float]], devices: int) -> None:
        self._devices = devices
        self._times_s, self._left_s = [0.0], [0.0]
        self._came_s = [0.0]  # all until then
        for time_s, work_s in works:
            left_s = self.at(time_s)
            self._times_s.append(time_s)
            self._left_s.append(left_s + work_s)
            self._came_s.append(self._came_s[-1] + work_s)

    def ahead(self, time_s: float) -> float:
        """Return what is then left, and what arrives up to TOGETHER times as late: it may as well come first."""
        left_s, came_s = self.at(time_s), self._came_s
        if len(came_s) == 1:
            return left_s
        last, together = (bisect_right(self._times_s, each_s) - 1 for each_s in (time_s, TOGETHER * time_s))
        return left_s + came_s[together] - came_s[last]

    def at(self, time_s: float) -> float:
        """Return what is then left of all work that arrived until then."""
        last = bisect_right(self._times_s, time_s) - 1
        return max(0.0, self._left_s[last] - self._devices * (time_s - self._times_s[last]))


@dataclass(frozen=True, slots=True)
class SketchState:
    """State before the LLM begins.

    tokens: l, expected length of the answer, at least 1.
    llm_s: f, seconds of the LLM for a number of tokens under its present load; non-decreasing.
    network_s: Δ, seconds that a sketch of a number of tokens takes to a device and its expansion back; non-decreasing.
    models: those that devices have, in order of preference among equals.
    devices: N, number of devices that expand sketches.
    queue: Q, jobs that wait for a device, or will when their sketches are written; the soonest first.
    room: jobs that may wait for a device.
    sketchable: whether the question's answer can be sketched.
    under_way_s: seconds of work left in jobs that devices have begun, summed over them. The paper's constraint leaves
        it out.
    parallelism: p, sentences that a device expands at once; the paper's conservative default is 1.
    speculates: whether the LLM has a drafter; f is then what it takes with that.
    load: other requests at the LLM, as a share of its places; above 1, some wait for one.
    """

    tokens: int
    llm_s: Callable[[float], float]
    network_s: Callable[[float], float]
    models: tuple[SmallModel, ...]
    devices: int
    queue: tuple[Coming, ...] = ()
    room: float = inf
    sketchable: bool = True
    under_way_s: float = 0.0
    parallelism: float = 1.0
    speculates: bool = False
    load: float = 0.0

    @property
    def full_s(self) -> float:
        """f(l): seconds of the LLM for the whole answer."""
        return self.llm_s(self.tokens)

    def expansion_s(self, model: SmallModel) -> float:
        """Return c·f(l)/p: seconds of the model for the expansion."""
        return model.cost * self.full_s / self.parallelism

    def backlog(self, model: SmallModel) -> Backlog:
        """Return Σ_{j∈Q} c·f(l_j)/p, the work of devices that have this model."""
        scale = model.cost / self.parallelism
        coming = ((job.due_s, scale * self.llm_s(job.tokens)) for job in self.queue)
        return Backlog([(0.0, self.under_way_s), *coming], self.devices)

    def written_s(self, sketch: float) -> float:
        """Return f(|r|) + Δ(r): seconds until a sketch of `sketch` tokens is at a device."""
        return self.llm_s(sketch) + self.network_s(sketch)

    def latency_s(self, model: SmallModel, sketch: float, backlog: Backlog | None = None) -> float:
        """Return the left side of PICE's inequality (2), for a sketch of `sketch` tokens: f(|r|) + Δ(r) + c·f(l)/p +
        Σ_{j∈Q} c·f(l_j)/(p·N). The paper prints the third term without p, having introduced p just before; and it
        counts all that waits now, though devices work on while the sketch is written, and other sketches come to them.
        Here it is what will be left when this one arrives. backlog: of that model."""
        written_s = self.written_s(sketch)
        waiting_s = (backlog or self.backlog(model)).ahead(written_s) / self.devices
        return written_s + waiting_s + self.expansion_s(model)


class Reason(StrEnum):
    """Reason for which the LLM answers in full."""

    OFF = "no answer is to be sketched"
    UNSUITABLE = "the question is not of a kind whose answer can be sketched"
    SHORT = "the answer is expected to be short"
    NO_DEVICE = "no device has a model to expand a sketch with"
    QUEUE_FULL = "as many jobs as may wait for a device do"
    SLOW = "a sketch that a model expands well, and its expansion, would take longer than the LLM alone"


class SketchDecision(NamedTuple):
    """Decision.

    tokens: length of the sketch, below l; 0 if the LLM answers in full.
    model: name of the model to expand it; None without a sketch.
    latency_s: until the answer is expected to be complete.
    reason: why there is no sketch; None with one.
    """

    tokens: int
    model: str | None
    latency_s: float
    reason: Reason | None


def _in_full(state: SketchState, reason: Reason) -> SketchDecision:
    return SketchDecision(0, None, state.full_s, reason)


class SketchPolicy(Protocol):
    """A sketching policy.

    shortest: tokens; answers that can only be shorter are given in full.
    bounded: whether a sketched answer is to be complete no later than the LLM's own.
    """

    shortest: int
    bounded: bool

    def choose(self, state: SketchState) -> SketchDecision:
        """Return the decision: a sketch only if there are a device, a model and room in the queue."""
        ...


sketching: Registry[SketchPolicy] = Registry("sketching")


@sketching.register("latency")
class WithinLatency:
    """PICE's dynamic scheduler: of all models and levels with which the answer comes no later than from the LLM, the
    one that the objectives prefer.

    If the LLM is not much slower than the small models, nothing satisfies the constraint, and the LLM answers alone:
    for f proportional to length, and n waiting answers as long as this one, it says |r|/l + c·(1 + n/N) ≤ 1.

    levels: number of length levels from 0 to l; a sketch has one of those between.
    shortest: tokens; shorter answers are given in full.
    slack: tokens that a sketch may exceed the requested length by (the paper has seen 10).
    objectives: their tolerances by name, the most important first.
    full_objectives: the same while the LLM is full.
    sure: share of the LLM's time that sketch and expansion may be expected to take. 1 is the paper's; less makes late
        answers rarer, as lengths and queues are guesses, and under load the mean answer later.
    """

    bounded = True

    def __init__(
        self,
        levels: int = 10,
        shortest: int = SHORTEST,
        slack: int = 10,
        objectives: Mapping[str, float] = OBJECTIVES,
        full_objectives: Mapping[str, float] = FULL_OBJECTIVES,
        sure: float = 1.0,
    ) -> None:
        if not 2 <= levels <= shortest or slack < 0:
            raise ValueError(f"needs 2 ≤ levels ≤ shortest and slack ≥ 0, not {levels}, {shortest}, {slack}")
        if not 0 < sure <= 1:
            raise ValueError(f"needs 0 < sure ≤ 1, not {sure}")
        self._levels, self.shortest, self._slack, self._sure = levels, shortest, slack, sure
        self._objectives, self._full_objectives = ranked(objectives), ranked(full_objectives)

    def choose(self, state: SketchState) -> SketchDecision:
        if not state.sketchable:
            return _in_full(state, Reason.UNSUITABLE)
        reason = _no_job(state, self.shortest)
        if reason is not None:
            return _in_full(state, reason)
        ways: list[tuple[SmallModel, int]] = []
        outlooks: list[Outlook] = []
        for model in state.models:
            for tokens, found in self._outlooks(state, model):
                ways.append((model, tokens))
                outlooks.append(found)
        if not ways:
            return _in_full(state, Reason.QUEUE_FULL)
        sure = min(self._sure, BESIDE_SPECULATION) if state.speculates else self._sure
        objectives = self._objectives if state.load < FULL else self._full_objectives
        best = preferred(outlooks, objectives, most_latency_s=sure * state.full_s)
        if best is None:
            return _in_full(state, Reason.SLOW)
        model, tokens = ways[best]
        return SketchDecision(tokens, model.name, outlooks[best].latency, None)

    def _outlooks(self, state: SketchState, model: SmallModel) -> Iterator[tuple[int, Outlook]]:
        """Yield lengths of sketches for which the job queue is expected to have room, and their outlooks; as
        `SketchState.latency_s` has them, with the backlog found once."""
        llm_s, network_s, all_tokens = state.llm_s, state.network_s, state.tokens
        backlog, expansion_s = state.backlog(model), state.expansion_s(model)
        for level in range(1, self._levels):
            if level / self._levels < model.least_share:
                continue
            tokens = -(-level * all_tokens // self._levels)
            write_s, send_s = llm_s(tokens + self._slack), network_s(tokens + self._slack)
            ahead_s = backlog.ahead(write_s + send_s)
            if not expansion_s or ahead_s / expansion_s - state.devices < state.room:
                throughput = max(write_s, send_s, expansion_s)
                latency_s = write_s + send_s + ahead_s / state.devices + expansion_s
                yield (
                    tokens,
                    Outlook(model.error(tokens / all_tokens), throughput, latency_s, tokens, all_tokens),
                )


@sketching.register("always")
class Always:
    """PICE's static scheduler, the baseline of its section V-C: always the same share of the expected length. The most
    capable model expands.

    share: of the answer, in tokens; the paper's sketches have 200 of 500.
    shortest: tokens; shorter answers are given in full.
    """

    bounded = False

    def __init__(self, share: float = 0.4, shortest: int = SHORTEST) -> None:
        if not 0 < share < 1 or shortest < 2:
            raise ValueError(f"needs 0 < share < 1 and shortest ≥ 2, not {share} and {shortest}")
        self._share, self.shortest = share, shortest

    def choose(self, state: SketchState) -> SketchDecision:
        reason = _no_job(state, self.shortest)
        if reason is None and sum(not job.due_s for job in state.queue) >= state.room:
            reason = Reason.QUEUE_FULL
        if reason is not None:
            return _in_full(state, reason)
        model = max(state.models, key=lambda model: model.capability)
        tokens = max(1, int(self._share * state.tokens))
        return SketchDecision(tokens, model.name, state.latency_s(model, tokens), None)


@sketching.register("never")
class NeverSketch:
    """Lets the LLM answer everything in full."""

    shortest = 0
    bounded = True

    def choose(self, state: SketchState) -> SketchDecision:
        return _in_full(state, Reason.OFF)


def _no_job(state: SketchState, shortest: int) -> Reason | None:
    """Return the reason that rules out a sketch for any policy, or None."""
    if state.tokens < shortest:
        return Reason.SHORT
    if not state.devices or not state.models:
        return Reason.NO_DEVICE
    return None
