"""What became of a seed, and whether the promises were kept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tandem.deployments.modes.race.settings import RaceSettings
from tandem.deployments.modes.sections import section
from tandem.deployments.request.timeouts import Limits
from tandem.policies.race.budget import CORRECTION
from tandem.simulator.chaos.saboteur import FragileWorld
from tandem.simulator.chaos.scenario import DEAR_JOULE, DEVICE_FAULTS, FATAL_FAULTS, Fault
from tandem.simulator.results.answer import Answer
from tandem.simulator.runs.run import Unreachable
from tandem.simulator.world.world import World

BUDGETED = ("disco", "stochastic")
"""Dispatch policies that keep to a budget."""
REPORTED_S = 1.0
"""After its end, the router has heard of an answer."""


@dataclass(slots=True)
class Outcome:
    """What became of a seed.

    broken: promises that were not kept, in words.
    faults: those that really happened.
    answers: to all requests.
    refused: of these, those that were turned away before their first token.
    longest_gap_s: between a request, its deliveries and its end.
    """

    seed: int
    broken: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    refused: int = 0
    longest_gap_s: float = 0.0


def promised_s(limits: Limits, wait_s: float) -> float:
    """The longest that a reader waits where somebody could answer: an endpoint that is silent counts as lost after
    `step_s`, or if it has given nothing yet, when it could have been reached, have admitted the request and given a
    first token; its successor is up within `wait_s`, and has as long for a first token."""
    timeouts = limits.timeouts
    first_s = timeouts.connect_s + timeouts.open_s + timeouts.first_s
    return max(timeouts.step_s, first_s) + wait_s + first_s


def check(outcome: Outcome, world: FragileWorld) -> None:
    """Add what was broken."""
    broken = outcome.broken
    limit_s = promised_s(world.config.limits.limits(), world.config.router.wait_s)
    for number, answer in enumerate(outcome.answers):
        expected = world.script.answer(answer.number)
        ids = answer.ids or []
        excused = _reader_is_cut_off(answer, outcome, world)
        if answer.failure is not None and not ids:
            outcome.refused += 1
            away = any(f.kind in DEVICE_FAULTS and f.at_s <= answer.ended_s for f in outcome.faults)
            if not excused and answer.failure not in (
                "overloaded", "unreachable", *(("device_not_found",) if away else ()),
            ):  # fmt: skip
                broken.append(f"request {number} ({answer.request.mode}) failed: {answer.failure}")
        elif ids != expected[: len(ids) if excused else None] or (answer.finish != "stop" and not excused):
            what = f"{answer.failure or answer.finish}, {len(ids)} of {len(expected)} tokens"
            broken.append(f"request {number} ({answer.request.mode}) did not come whole: {what}")
        gap_s = _longest_gap_s(answer)
        outcome.longest_gap_s = max(outcome.longest_gap_s, gap_s)
        if gap_s > limit_s:
            broken.append(f"request {number} ({answer.request.mode}) waited {gap_s:.1f} s")
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
    broken += _overspent(outcome, world) + _not_resumed(outcome)


def _reader_is_cut_off(answer: Answer, outcome: Outcome, world: World) -> bool:
    """Whether it broke off since its reader is at a device that was not there, or behind a link that carried nothing.
    (An answer that a device gives to its own reader, once it has begun, waits for the link to go on elsewhere.)"""
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


def _longest_gap_s(answer: Answer) -> float:
    """The end counts, for it may come without a token."""
    return max(b - a for a, b in pairwise([answer.arrival_s, *(answer.times_s or ()), answer.ended_s]))


def _tasks(loop: Any) -> list[str]:
    return sorted(
        getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks(loop) if not task.done()
    )


def _not_resumed(outcome: Outcome) -> list[str]:
    """Answers whose device left and came back in time, and that have nevertheless broken off or begun another session,
    though nothing else went wrong meanwhile."""
    broken = []
    for number, answer in enumerate(outcome.answers):
        meanwhile = [f for f in outcome.faults if _during(f, answer)]
        away = [f for f in meanwhile if f.kind == "away" and f.target == answer.device]
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


def _during(fault: Fault, answer: Answer) -> bool:
    return answer.arrival_s <= fault.at_s + fault.seconds and fault.at_s <= answer.ended_s


def _overspent(outcome: Outcome, world: FragileWorld) -> list[str]:
    """Whether the endpoint that the budget limits took in more by plan than it may. What it took in since the other one
    had failed is no plan's fault.

    A router plans to spend as long as no more was overspent than it makes up for: by then it may have overspent so
    much, the prompt that it planned last, and those under way, of which it did not know yet what they would spend. One
    that dies takes its books along.
    """
    accounts, dispatch = world.config.accounts, section(world.config, RaceSettings).dispatch
    raced = [a for a in outcome.answers if a.number in world.plans]
    if dispatch.name not in BUDGETED or not raced:
        return []
    routers = 1 + sum(fault.kind == "router" for fault in outcome.faults)
    longest = max(answer.prompt_tokens for answer in raced)
    under_way = max(
        sum(b.arrival_s <= a.arrival_s <= b.ended_s + REPORTED_S for b in raced if b is not a) for a in raced
    )
    allowed = accounts.budget * sum(answer.prompt_tokens for answer in raced)
    if accounts.budget:
        allowed += routers * longest * (CORRECTION * accounts.budget + 1 + under_way)
    spent = 0
    for answer in raced:
        if answer.stats is not None and world.plans[answer.number]:
            used = answer.stats.used
            taken_in = used.device_in if accounts.exchange_rate == DEAR_JOULE else used.server_in
            spent += min(answer.prompt_tokens, taken_in)
    return [f"a budget of {allowed:.0f} tokens is overspent: {spent}"] if spent > allowed else []
