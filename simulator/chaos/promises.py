"""Outcome of a seed, and checks of the promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.timeouts import Limits
from tandem.deployments.routing.stand_in import LATE_S, SIGN_S
from tandem.policies.estimators.overdue import HUNG_S
from tandem.policies.reader.quality import Reader
from tandem.simulator.chaos.house import REFUSALS
from tandem.simulator.chaos.saboteur import FragileWorld
from tandem.simulator.chaos.scenario import DEAR_JOULE, DEVICE_FAULTS, FATAL_FAULTS, Fault, is_tight
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.runs.run import Unreachable
from tandem.simulator.world.world import World

ROUNDED = 1e-6
"""Rounding error, tokens."""


@dataclass(slots=True)
class ChaosOutcome:
    """Outcome of a seed.

    broken: broken promises, in words.
    faults: faults that really happened.
    answers: to all requests.
    late: seconds that readers waited in vain beyond what is promised, by request.
    refused: number of answers refused before their first token.
    longest_gap_s: longest time between a request, its deliveries and its end.
    """

    seed: int
    broken: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    answers: list[SimulatedAnswer] = field(default_factory=list)
    late: dict[int, float] = field(default_factory=dict)
    refused: int = 0
    longest_gap_s: float = 0.0


GAP_S = 5.0
"""Longest that a fault keeps a reader waiting who can be reached and has nothing to read, for each endpoint lost
meanwhile and for the request's device if it is away, outages apart, where there is room for all requests."""
ROUTER_S = LATE_S + SIGN_S
"""Longest that a request waits for a router that is gone before it is assigned without it."""
MIDDLE_S = {"middle": 1.0, "frozen": GAP_S}
"""Longest that an answer in mode split waits for another middle, by the fault that takes its own."""
SLOWER = ("sketch", "split")
"""Modes whose answers may wait for longer: for expansions, or for the only device that can go on."""


def promised_s(limits: Limits, wait_s: float) -> float:
    """Return the longest that a reader waits if an endpoint can answer: a silent endpoint counts as lost after
    `step_s`, or before its first token after the timeouts to connect, open and give it; its successor is up within
    `wait_s`, and has as long for a first token."""
    timeouts = limits.timeouts
    first_s = timeouts.connect_s + timeouts.open_s + timeouts.first_s
    return max(timeouts.step_s, first_s) + wait_s + first_s


def check(outcome: ChaosOutcome, world: FragileWorld) -> None:
    """Add the broken promises to the outcome."""
    broken = outcome.broken
    limit_s = promised_s(world.config.limits.limits(), world.config.router.wait_s)
    roomy = not is_tight(world.config)
    for number, answer in enumerate(outcome.answers):
        expected = world.script.answer(answer.number)
        ids = answer.ids or []
        excused = _reader_is_cut_off(answer, outcome, world)
        if answer.failure is not None and not ids:
            outcome.refused += answer.failure not in REFUSALS
            away = any(f.kind in DEVICE_FAULTS and f.at_s <= answer.ended_s for f in outcome.faults)
            limits = () if world.house is None else REFUSALS
            if not excused and answer.failure not in (
                "overloaded", "unreachable", *(("device_not_found",) if away else ()), *limits,
            ):  # fmt: skip
                broken.append(f"request {number} ({answer.request.mode}) failed: {answer.failure}")
        elif ids != expected[: len(ids) if excused else None] or (answer.finish != "stop" and not excused):
            what = f"{answer.failure or answer.finish}, {len(ids)} of {len(expected)} tokens"
            broken.append(f"request {number} ({answer.request.mode}) did not come whole: {what}")
        outcome.longest_gap_s = max(outcome.longest_gap_s, _longest_gap_s(answer))
        gap_s = max(
            end_s - begin_s - _unreached_s(answer, outcome, world, begin_s, end_s)
            for begin_s, end_s in _gaps(answer)
        )
        if gap_s > limit_s:
            broken.append(f"request {number} ({answer.request.mode}) waited {gap_s:.1f} s")
        elif roomy and answer.failure is None and (late_s := _late_s(answer, outcome, world)) > 0:
            outcome.late[number] = late_s
    for server in (*world.servers, *world.drafters):
        if server.alive and server.open_sessions:
            broken.append(f"{server.endpoint.name} is left with {server.open_sessions} sessions")
        if server.alive and (memory := server.core.blocks_used):
            broken.append(f"{server.endpoint.name} is left with {memory} blocks in use")
    for index in range(len(world.devices)):
        here = world.devices[index]
        if sessions := here.device.sessions:
            broken.append(f"device {index} is left with {sessions} sessions")
        if here.outer is not None and (sessions := here.outer.sessions):
            broken.append(f"device {index}'s part of a model is left with {sessions} sessions")
    if busy := [name for name, part in world.routing.modes.items() if not part.idle]:
        broken.append(f"requests hold something at the router, or wait for it, in modes {busy}")
    if tasks := _tasks(world.loop):
        broken.append(f"tasks are left: {', '.join(tasks)}")
    broken += _overspent(outcome, world) + _not_resumed(outcome) + (_without_middle(outcome) if roomy else [])


def _reader_is_cut_off(answer: SimulatedAnswer, outcome: ChaosOutcome, world: World) -> bool:
    """Return whether an answer broke off because its reader's device or link was down. (An answer that a device gives
    to its own reader, once begun, waits for the link before it goes on elsewhere.)"""
    hit = {
        f.kind
        for f in outcome.faults
        if f.kind in DEVICE_FAULTS
        and f.target == answer.device
        and f.at_s <= answer.ended_s
        and answer.arrival_s <= f.at_s + f.seconds
    }
    return (
        answer.failure is not None
        and world.config.reader == "device"
        and ("leave" in hit or (bool(hit) and (answer.failure == Unreachable.code or not answer.tokens)))
    )


def _unreached_s(
    answer: SimulatedAnswer, outcome: ChaosOutcome, world: World, begin_s: float, end_s: float
) -> float:
    """Return the seconds between two times in which an answer's reader could not be reached."""
    if world.config.reader != "device":
        return 0.0
    unreached_s, until_s = 0.0, begin_s
    for fault in sorted(outcome.faults, key=lambda fault: fault.at_s):
        if fault.kind in DEVICE_FAULTS and fault.target == answer.device:
            back_s = min(end_s, fault.at_s + fault.seconds)
            unreached_s += max(0.0, back_s - max(until_s, fault.at_s))
            until_s = max(until_s, back_s)
    return unreached_s


def _gaps(answer: SimulatedAnswer) -> Iterator[tuple[float, float]]:
    """Yield the times between deliveries; the end counts, as it may come without a token."""
    return pairwise([answer.arrival_s, *(answer.times_s or ()), answer.ended_s])


def _longest_gap_s(answer: SimulatedAnswer) -> float:
    return max(end_s - begin_s for begin_s, end_s in _gaps(answer))


def _late_s(answer: SimulatedAnswer, outcome: ChaosOutcome, world: FragileWorld) -> float:
    """Return by how much longer than promised a reader waited with nothing to read, without an outage; 0 in modes that
    may be slower, and for a reader whose own device or link was hit."""
    hit = any(
        f.kind in DEVICE_FAULTS and f.target == answer.device and _during(f, answer) for f in outcome.faults
    )
    if answer.mode in SLOWER or answer.request.mode in SLOWER or (hit and world.config.reader == "device"):
        return 0.0
    late_s = 0.0
    for dry_s, end_s in _waits(answer):
        lost = {endpoint.name for endpoint in _losses(world, dry_s, end_s)}
        if any(
            f.kind in DEVICE_FAULTS
            and f.target == answer.device
            and f.at_s <= end_s
            and dry_s <= f.at_s + f.seconds
            for f in outcome.faults
        ):  # it may be waited for
            lost.add(f"device-{answer.device}")
        allowed_s = GAP_S * (max(1, len(lost)) + _hung_while_slow(outcome.faults, dry_s, end_s))
        if any(
            f.kind == "router" and f.at_s <= end_s and dry_s <= f.at_s + f.seconds for f in outcome.faults
        ):
            allowed_s += ROUTER_S
        late_s = max(late_s, end_s - dry_s - world.out_s(dry_s, end_s) - allowed_s)
    return late_s


def _hung_while_slow(faults: Sequence[Fault], begin_s: float, end_s: float) -> int:
    """Return how many engines that hung between two times did so while a server was slow: one that hangs then is told
    from one that is slow only after several of its slow steps."""
    slow = [fault for fault in faults if fault.kind == "late"]
    hung = [fault for fault in faults if fault.kind == "hang" and begin_s - 2 * HUNG_S <= fault.at_s <= end_s]
    return sum(any(0.0 <= hang.at_s - late.at_s <= late.seconds for late in slow) for hang in hung)


def longest_wait_s(answer: SimulatedAnswer) -> float:
    """Return the longest that a reader waited with nothing to read."""
    return max(end_s - dry_s for dry_s, end_s in _waits(answer))


def _waits(answer: SimulatedAnswer) -> Iterator[tuple[float, float]]:
    """Yield when the reader had read everything, or would have, and when the next token came."""
    reader = Reader(rate) if (rate := answer.request.reader_rate) else None
    for begin_s, end_s in _gaps(answer):
        yield begin_s + (reader.dry_s(begin_s) if reader else 0.0), end_s
        if reader is not None:
            reader.deliver(1, end_s)


def _losses(world: FragileWorld, begin_s: float, end_s: float) -> Iterator[EndpointInfo]:
    return (endpoint for endpoint, at_s in world.losses if begin_s <= at_s <= end_s)


def _tasks(loop: Any) -> list[str]:
    return sorted(
        getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks(loop) if not task.done()
    )


def _not_resumed(outcome: ChaosOutcome) -> list[str]:
    """Return answers whose device left and came back in time, but which broke off or began another session though
    nothing else went wrong meanwhile."""
    broken = []
    for number, answer in enumerate(outcome.answers):
        meanwhile = [f for f in outcome.faults if _during(f, answer)]
        begun_s = answer.times_s[0] if answer.times_s else answer.ended_s  # it has a session then
        away = [f for f in meanwhile if f.kind == "away" and f.target == answer.device and begun_s <= f.at_s]
        if (
            not away
            or answer.mode != "split"
            or any(f.kind in FATAL_FAULTS or f.kind == "stall" for f in meanwhile)
        ):
            continue
        if answer.failure is not None or answer.stats is None or answer.stats.replans:
            replans = 0 if answer.stats is None else answer.stats.replans
            broken.append(f"request {number} was not resumed: {answer.failure}, {replans} sessions more")
    return broken


def _without_middle(outcome: ChaosOutcome) -> list[str]:
    """Return answers in mode split that waited for too long as their middle was lost though nothing else went wrong."""
    broken = []
    for number, answer in enumerate(outcome.answers):
        meanwhile = [f for f in outcome.faults if _during(f, answer)]
        if answer.mode != "split" or len(meanwhile) != 1 or meanwhile[0].kind not in MIDDLE_S:
            continue
        (fault,) = meanwhile
        gap_s = max((end - begin for begin, end in _gaps(answer) if begin <= fault.at_s < end), default=0.0)
        if answer.failure is not None or gap_s > MIDDLE_S[fault.kind]:
            broken.append(f"request {number} found no other middle in time: {answer.failure}, {gap_s:.1f} s")
    return broken


def _during(fault: Fault, answer: SimulatedAnswer) -> bool:
    return answer.arrival_s <= fault.at_s + fault.seconds and fault.at_s <= answer.ended_s


def _overspent(outcome: ChaosOutcome, world: FragileWorld) -> list[str]:
    """Return whether the limited endpoint took in more than its budget: over all races, or in one of them although the
    other endpoint had not failed. A router that dies loses its budget; its successor plans a continued race anew.

    An answer that ends in another mode has no other endpoint any more: where the limited one is lost, too, its
    successor takes in the prompt again. The budget is that of races: what an answer takes in while it is none, as it
    began as something else or its mode was changed by choice, does not count.
    """
    by_device = world.config.accounts.exchange_rate == DEAR_JOULE
    broken, spent = [], 0.0
    for answer in outcome.answers:
        if answer.stats is None or (limit := world.limits.get(answer.number)) is None:
            continue
        used = answer.stats.used
        taken_in = used.device_in if by_device else used.server_in
        taken_in = max(0, taken_in - world.before[answer.number])
        spent += min(limit, taken_in)
        lost = {gone.device for gone in _losses(world, answer.arrival_s, answer.ended_s)}
        failed = (not by_device) in lost or (answer.mode != "race" and by_device in lost)
        by_choice = answer.request.mode is None and answer.stats.figures.keys() != {"race"}
        if taken_in > limit and not (failed or by_choice):
            broken.append(f"request {answer.number} was to take in {limit:g} tokens, not {taken_in}")
    if spent > world.allowed + ROUNDED:
        broken.append(f"a budget of {world.allowed:.0f} tokens is overspent: {spent:.0f}")
    return broken
