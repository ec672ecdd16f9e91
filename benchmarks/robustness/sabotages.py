"""Sabotages of the code that chaos plays, which show that its promises can be broken: each puts one fault into the code
while it is applied, and names the promise that a seed is then seen to break."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch
from weakref import WeakKeyDictionary

from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.deployments.access.client.bill_sender import BillSender
from tandem.deployments.access.key_service import KeyService
from tandem.deployments.access.quota import Standing
from tandem.deployments.access.store import BillBatch
from tandem.deployments.admission.controller import Gate
from tandem.deployments.admission.limits import Quotas
from tandem.deployments.config.settings import LimitSettings
from tandem.deployments.gateway.connected_devices import ConnectedDevices
from tandem.deployments.gateway.metering import CountedSession
from tandem.deployments.modes.executor import _Request
from tandem.deployments.modes.speculative.mode import SpeculativeMode
from tandem.deployments.modes.speculative.observer import Observer
from tandem.deployments.request.assignment import EndpointLost, Unavailable
from tandem.deployments.request.session import EndpointSession
from tandem.deployments.request.timeouts import Limits
from tandem.engine.base import Verdict
from tandem.engine.core.kvcache import BlockPool
from tandem.policies.estimators.overdue import StepLimit
from tandem.policies.race.budget import Booking, Budget
from tandem.policies.race.race import Race
from tandem.policies.reader.stall_timeout import FLOOR_S, PROBE_S, Patience
from tandem.simulator.chaos import play
from tandem.simulator.chaos.dialled import play_dialled
from tandem.simulator.world import network

Patches = Sequence[AbstractContextManager[object]]
Broken = Callable[[int], list[str]]
"""Returns the promises that a seed breaks, in words."""


class Sabotage(NamedTuple):
    """A fault in the code, and how it is noticed.

    what: the fault, in words.
    promise: part of what is said of the broken promise.
    seed: that once showed it; another one, should what is drawn from seeds have changed since.
    broken: plays a seed, or the part of it that can show the fault.
    patches: put the fault into the code while they are entered.
    """

    what: str
    promise: str
    seed: int
    broken: Broken
    patches: Callable[[], Patches]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the fault in the code."""
        with ExitStack() as stack:
            for each in self.patches():
                stack.enter_context(each)
            yield

    def found_by(self, seeds: Iterable[int]) -> int | None:
        """Return the first seed that is seen to break the promise; None if none is."""
        with self.applied():
            for seed in seeds:
                if self.promise in "\n".join(self.broken(seed)):
                    return seed
        return None


SABOTAGES: list[Sabotage] = []


def _whole(seed: int) -> list[str]:
    return _collected(play(seed).broken)


def _dialled(seed: int) -> list[str]:
    with TemporaryDirectory() as folder:
        return _collected(play_dialled(seed, Path(folder)).broken)


def _collected(broken: list[str]) -> list[str]:
    gc.collect()  # what hangs after a seed has no other end, and complains of it here
    return broken


def _sabotage(
    what: str, promise: str, seed: int, broken: Broken = _whole
) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Enter what a function returns into the table."""

    def enter(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        SABOTAGES.append(Sabotage(what, promise, seed, broken, patches))
        return patches

    return enter


# -- answers ----------------------------------------------------------------------------------------------------------


@_sabotage(
    "a token is forgotten, and said again, where an answer goes on elsewhere", "did not come whole", 2003
)
def _token_forgotten() -> Patches:
    async def lose(request: _Request, loss: EndpointLost) -> None:
        await real(request, loss)
        if request.log.ids:
            request.log.ids.pop()
            request.log.origins.pop()

    real = _Request.lose
    return [patch.object(_Request, "lose", lose)]


@_sabotage("the last token of a verdict is wrong", "did not come whole", 2003)
def _wrong_verdict() -> Patches:
    def wrong(accepted: int, ids: list[int], *more: Any) -> Verdict:
        return Verdict(accepted, [*ids[:-1], *(1 - each for each in ids[-1:])], *more)

    return [patch("tandem.engine.core.step.Verdict", wrong)]


@_sabotage("no answer goes on elsewhere", "did not come whole", 2003)
def _no_failover() -> Patches:
    return [patch.object(LimitSettings, "limits", lambda settings: Limits(replans=0, assign_s=1e-9))]


@_sabotage("endpoints are given up four times too late", "was kept waiting", 2085)
def _late_timeouts() -> Patches:
    probe_s = Patience.probe_s
    return [
        patch.object(Patience, "probe_s", lambda *known: 4 * probe_s(*known)),
        patch("tandem.deployments.request.probes.PROBE_S", 4 * PROBE_S),
        patch("tandem.policies.reader.stall_timeout.FLOOR_S", 4 * FLOOR_S),
    ]


@_sabotage("an answer waits for a drafter that is gone", "was kept waiting", 541)
def _waits_for_a_drafter() -> Patches:
    roles = [replace(role, if_absent="") for role in SpeculativeMode.roles]
    return [patch.object(SpeculativeMode, "roles", roles)]


@_sabotage("an engine that hangs is not noticed", "was kept waiting", 2007)
def _unnoticed_hang() -> Patches:
    return [patch.object(StepLimit, "limit_s", lambda limit, expected_s: inf)]


@_sabotage("a disconnected device takes the cloud for late", "was not resumed", 2042)
def _impatient_device() -> Patches:
    never = property(lambda path: -inf, lambda path, at: None)
    return [patch.object(network.Path, "reached_s", never, create=True)]


# -- what is left behind ----------------------------------------------------------------------------------------------


@_sabotage("the end of a session is waited for in vain", "deadlock", 2002)
def _endless_close() -> Patches:
    async def close(session: EndpointSession) -> None:
        await session.close()
        await asyncio.Event().wait()

    return [patch("tandem.deployments.modes.executor._close", close)]


@_sabotage("no session is cancelled", "is left with", 2004)
def _sessions_left() -> Patches:
    async def forget(session: network.LinkedSession) -> None:
        pass

    return [patch.object(network.LinkedSession, "cancel", forget)]


@_sabotage("no block of the KV cache is given back", "blocks in use", 2004)
def _blocks_left() -> Patches:
    return [patch.object(BlockPool, "release", lambda pool, table: None)]


@_sabotage("a task outlives its answer", "tasks are left: _asked", 2005)
def _tasks_left() -> Patches:
    async def asks_for_ever(observer: Observer) -> None:
        await asyncio.Event().wait()

    return [
        patch.object(Observer, "_ask_target", asks_for_ever),
        patch.object(Observer, "stop", lambda observer: None),
    ]


# -- budgets, limits and bills ----------------------------------------------------------------------------------------


@_sabotage("reservations of races have no limit", "is overspent", 2031)
def _unlimited_reservations() -> Patches:
    def unlimited(budget: Budget, tokens: int, planned: bool, share: float | None, beyond: int) -> Booking:
        return book(budget, tokens, planned, 1.0, beyond)

    book = Budget.book
    return [patch.object(Budget, "book", unlimited)]


@_sabotage("a race starts a limited endpoint as the other one stalls", "was to take in 0 tokens", 2031)
def _unheeded_limits() -> Patches:
    return [patch.object(Race, "may_start", lambda race, side, sent: True)]


@_sabotage("the gate keeps the place of a request that is over", "have not left the gate", 2000)
def _places_kept() -> Patches:
    return [patch.object(Gate, "_leave", lambda gate, replica, request: None)]


@_sabotage("a new gate does not wait to hear what its predecessor let in", "answers at once, and may have", 4)
def _unlearned_gate() -> Patches:
    return [patch("tandem.deployments.admission.controller.LEARNING_S", 0.0)]


@_sabotage("no dollars are reserved", "has spent", 2097)
def _unreserved_dollars() -> Patches:
    return [patch.object(Quotas, "_reserve", lambda quotas, entry, limits, now_s: None)]


@_sabotage("bills are sent once", "are due", 2008)
def _bills_sent_once() -> Patches:
    async def once(sender: BillSender, batch: BillBatch) -> Mapping[str, Standing]:
        with suppress(Unavailable):
            return await asyncio.wait_for(sender._send(batch), 0.5)
        return {}

    return [patch.object(BillSender, "_send_until_booked", once)]


@_sabotage("a batch of bills that comes again is booked again", "are due", 2038)
def _bills_booked_twice() -> Patches:
    def charge(service: KeyService, batch: BillBatch) -> None:
        real(service, batch._replace(number=next(number)))

    real, number = KeyService.charge, count(1)
    return [patch.object(KeyService, "charge", charge)]


# -- devices that dial in ---------------------------------------------------------------------------------------------


@_sabotage("a resumed connection loses a frame", "has other tokens", 2050, _dialled)
def _frame_lost() -> Patches:
    return [patch.object(ResumeBuffer, "missing", lambda buffer: b"".join(list(buffer._kept)[1:]))]


@_sabotage("a resumed connection sends nothing again", "has other tokens", 2050, _dialled)
def _nothing_resumed() -> Patches:
    return [patch.object(ResumeBuffer, "missing", lambda buffer: b"")]


@_sabotage("a program that dials in again is taken for the one before", "not listed", 2021, _dialled)
def _device_forgotten() -> Patches:
    def arrives(devices: ConnectedDevices, connection: Connection) -> None:
        seen = names.setdefault(devices, set())
        if (name := devices._greeted[connection].name) not in seen:
            seen.add(name)
            arrived(devices, connection)

    arrived, names = ConnectedDevices.arrived, WeakKeyDictionary[ConnectedDevices, set[str]]()
    return [patch.object(ConnectedDevices, "arrived", arrives)]


@_sabotage("a killed gateway takes bills along", "are due", 2050, _dialled)
def _gateway_bills_lost() -> Patches:
    return [patch.object(CountedSession, "_tell_soon", lambda session: None)]


@_sabotage("a killed gateway breaks answers", "did not come whole", 2050, _dialled)
def _gateway_answers_broken() -> Patches:
    return [patch("tandem.deployments.gateway.client.BACK_S", 0.01)]
