"""A connected device: its permissions in the cloud, and its usage.

Nothing that the device reports is trusted: its key identifies the account, the router's assignments limit its
endpoints, and its traffic is metered here.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import Unauthorized, UnknownEngine
from tandem.cluster.wire.server import EngineHandler
from tandem.deployments.access.accounts import Statement
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.keys import Caller, Role
from tandem.deployments.admission.client import Entrance
from tandem.deployments.admission.entry import Entry, Room
from tandem.deployments.gateway.messages import (
    ACCOUNT,
    ASSIGN,
    ECHO,
    ENGINE,
    MIDDLES,
    OVER,
    REGISTER,
    AssignmentMessage,
    Over,
    Registered,
    pack,
    unpack,
)
from tandem.deployments.gateway.metering import Counted
from tandem.deployments.learning.report import Report
from tandem.deployments.lru import LRUTable
from tandem.deployments.modes import MODES
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Prices, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import UnknownMode
from tandem.engine.base import Engine, EngineError, InvalidRequest, NoCapacity, SplitInfo
from tandem.policies.cost import Used

REACHED = 256
"""Most endpoints that a device may use: those assigned last."""
UNDER_WAY = 256
"""Requests that it may have begun and not ended."""
SESSIONS = 4
"""Most sessions of a request at once, closing ones included."""
LONGEST_WORD = 200
ENDED = 1024
"""Requests that are known to be over: those that ended last."""
PATIENCE = 3
"""Looks at sessions without a request, until they end."""
ANSWER_S = 2.0
"""Seconds after which a device that does not answer may be replaced; shorter than the wait for a welcome."""


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """Identity of a peer, for as long as the connection lives.

    name: of the device; account: its key's.
    instance: of its program; distinguishes programs with the same key.
    digest: of its secret, to check whether that is still valid.
    """

    name: str
    account: str
    instance: bytes
    digest: str = field(compare=False)

    @classmethod
    def of(cls, caller: Caller | None, digest: str, instance: bytes = b"") -> DeviceIdentity:
        """Raises Unauthorized."""
        if caller is None or not caller.keyed or caller.role is not Role.DEVICE:
            raise Unauthorized("that is no device's key; see `tandem keys device make`")
        return cls(caller.name, caller.account, instance, digest)


@dataclass(frozen=True, slots=True)
class Cloud:
    """Interface of the cloud for connected devices.

    assign, middles: ask the router.
    account: asks the key service.
    register: returns when the router knows the device.
    report: tells it what a device has had.
    booked: returns when that is on disk, or cannot be.
    dial: an engine for an endpoint.
    entrance: through which requests pass.
    model: for requests of devices that name none; "": the first one.
    """

    assign: Callable[[RoutingRequest], Awaitable[Assignment]]
    account: Callable[[str], Awaitable[Statement]]
    middles: Callable[[str], Awaitable[tuple[SplitInfo, ...]]]
    register: Callable[[DeviceRecord], Awaitable[None]]
    report: Callable[[Report], object]
    booked: Callable[[], Awaitable[None]]
    dial: Callable[[EndpointInfo], Awaitable[Engine]]
    entrance: Entrance
    model: str = ""


class _Terms(NamedTuple):
    """Mode, model and prices of an assignment: what its usage is billed as."""

    mode: str
    model: str
    prices: Prices


@dataclass(slots=True)
class _Reached:
    """An endpoint that the device may use. terms: of the last assignment there."""

    endpoint: EndpointInfo
    terms: _Terms


@dataclass(slots=True)
class _Passed:
    """A request that has passed the gate, under a number there. terms: of its last assignment."""

    number: int
    terms: _Terms


class ConnectedDevice(EngineHandler):
    """Serves the connection of one device.

    record: what the device has last said of itself, under its key's name; None until it has.
    """

    def __init__(self, connection: Connection, callers: Callers, cloud: Cloud) -> None:
        self._reached: LRUTable[str, _Reached] = LRUTable(REACHED)
        self._dialled: LRUTable[str, Engine] = LRUTable(REACHED)
        self._full: LRUTable[str, None] = LRUTable(
            REACHED
        )  # those that had no room for it: others have to wait there
        super().__init__(self._dialled, connection)
        self.record: DeviceRecord | None = None
        self._callers, self._cloud = callers, cloud
        self._requests: dict[int, _Passed] = {}
        self._ended: LRUTable[int, None] = LRUTable(ENDED)
        self._entering = 0
        self._budget: float | None = None
        self._announced = 0  # tokens that passed the gate and were not taken in yet
        self._idle = 0
        self._known = False  # to the router
        self._dialled_s = time.time()

    @property
    def identity(self) -> DeviceIdentity:
        """Identity of the peer, after the handshake."""
        identity = self._connection.peer
        assert isinstance(identity, DeviceIdentity)
        return identity

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.identity.name

    async def caller(self) -> Caller:
        """Return the caller with its present limits. Raises Unauthorized if the key was revoked."""
        caller = await self._callers.of(self.identity.digest)
        DeviceIdentity.of(caller, self.identity.digest)
        assert caller is not None
        self._budget = caller.terms.budget
        return caller

    def present(self, address: str) -> DeviceRecord | None:
        """Return the record of the device, which is reached at this address; None while it cannot be reached."""
        if self.record is None or self._connection.away:
            return None
        rtt_s = round(self._connection.rtt_s, 4)
        return msgspec.structs.replace(self.record, address=address, rtt_s=rtt_s, link=self._connection.link)

    async def answers(self, within_s: float) -> bool:
        """Whether the device is there."""
        return await self._connection.answers(within_s)

    def leave(self, why: EngineError) -> None:
        """Send the device away."""
        self._connection.fail(why)

    async def find(self, engine: str) -> Engine:
        """Return the engine of an endpoint that the router has assigned to the device, by the endpoint's key. Raises
        UnknownEngine."""
        if (reached := self._reached.get(engine)) is None:
            raise UnknownEngine(f"{engine!r} is not assigned to this device")
        there = await self._cloud.dial(reached.endpoint)
        full = partial(self._full.__setitem__, engine, None)
        owner = f"{self.identity.account}/{self.name}"
        found = self._dialled[engine] = Counted(
            there, partial(self._book, reached), self._may_open, full, owner
        )
        return found

    async def answer(self, method: str, body: bytes) -> bytes:
        if method == REGISTER:
            return pack(await self._register(unpack(body, DeviceRecord)))
        if method == ASSIGN:
            return pack(AssignmentMessage.of(await self._assign(unpack(body, RoutingRequest))))
        if method == OVER:
            await self._over(unpack(body, Over))
            return pack(None)
        if method == ACCOUNT:
            return pack(await self._cloud.account(self.identity.account))
        if method == MIDDLES:
            return pack(await self._cloud.middles(unpack(body, str) or self._cloud.model))
        if method == ECHO:
            return body
        return await super().answer(method, body)

    async def tidy(self) -> None:
        """Called every second or so: sessions that belong to no request any more end."""
        self._idle = 0 if self._requests or not self.sessions else self._idle + 1
        if self._idle > PATIENCE:
            await self.end_sessions()

    async def stop(self) -> None:
        await super().stop()
        for request in list(self._requests):
            self._leave(request)

    def _may_open(self) -> None:
        """Raises NoCapacity: sessions are for requests that have passed the gate."""
        if self.sessions > SESSIONS * len(self._requests):
            raise NoCapacity(f"{len(self._requests)} requests cannot have {self.sessions} sessions", 1.0)

    async def _register(self, record: DeviceRecord) -> Registered:
        """Take down how the device is doing. The first answer comes when the router knows the device, too."""
        told = msgspec.structs.asdict(record).values()
        if any(isinstance(v, str) and len(v) > LONGEST_WORD for v in told):
            raise InvalidRequest(f"string fields of a device are limited to {LONGEST_WORD} characters")
        if not all(0 <= v < math.inf for v in told if isinstance(v, int | float)):
            raise InvalidRequest("a device's numbers must be finite, and not negative")
        self.record = record = msgspec.structs.replace(
            record, name=self.name, dialled_in=True, dialled_s=self._dialled_s, serves=()
        )
        if not self._known and ENGINE in self._connection.peer_engines:
            await self.answers(ANSWER_S)  # its round-trip time is known then
            rtt_s = round(self._connection.rtt_s, 4)
            await self._cloud.register(msgspec.structs.replace(record, rtt_s=rtt_s))
            self._known = True
        return Registered(self.name, self.identity.account, self._budget)

    async def _assign(self, wanted: RoutingRequest) -> Assignment:
        """Endpoints for a request, which passes the gate before. Raises as the router, LimitReached, UnknownMode."""
        if wanted.prompt_tokens < 1 or wanted.max_tokens < 1 or wanted.sent < 0:
            raise InvalidRequest("a request has a prompt, and room for an answer")
        caller = await self.caller()
        terms = caller.terms
        if wanted.mode is None or wanted.mode not in MODES or not MODES[wanted.mode].afar:
            raise UnknownMode(f"mode {wanted.mode!r} is not driven from devices")
        if terms.modes is not None and wanted.mode not in terms.modes:
            raise UnknownMode(f"this device's key may not use mode {wanted.mode!r}")
        wanted = replace(
            wanted,
            device=caller.name,
            account=caller.account,
            budget=terms.budget,
            exchange_rate=terms.exchange_rate,
            modes=terms.modes,
            devices=(caller.name,),
            full=tuple(key for key in wanted.full if key in self._full),
            model=wanted.model or self._cloud.model,
        )
        began = wanted.request not in self._requests
        if began:
            await self._enter(wanted, caller)
        try:
            made = await self._cloud.assign(wanted)
        except BaseException:
            if began:  # it has nothing to end
                self._leave(wanted.request)
            raise
        under = _Terms(made.mode, wanted.model, made.prices)
        for endpoint in made.endpoints.values():
            if not endpoint.device:
                self._reached.of(endpoint.key, partial(_Reached, endpoint, under)).terms = under
        if (passed := self._requests.get(wanted.request)) is not None:
            passed.terms = under
        return made

    async def _enter(self, wanted: RoutingRequest, caller: Caller) -> None:
        if len(self._requests) + self._entering >= UNDER_WAY:
            raise NoCapacity(f"a device has {UNDER_WAY} requests under way at most", 1.0)
        # Under a number of its own: another device may use the same one.
        number = secrets.randbits(63)
        room = Room(number, wanted.prompt_tokens, wanted.max_tokens)
        entry = Entry.of(caller, [room], wanted.prompt_tokens, wanted.model, wanted.priority)
        self._entering += 1
        try:
            await self._cloud.entrance.enter(entry)
        finally:
            self._entering -= 1
        if wanted.request in self._requests:  # a repeated message
            self._cloud.entrance.leave(entry.request)
            return
        self._requests[wanted.request] = _Passed(
            entry.request, _Terms(wanted.mode or "", wanted.model, Prices())
        )
        self._announced += wanted.prompt_tokens

    def _leave(self, request: int) -> _Passed | None:
        """Give a request's place back; return the request, None if it had no place."""
        if (passed := self._requests.pop(request, None)) is not None:
            self._cloud.entrance.leave(passed.number)
        return passed

    async def _over(self, said: Over) -> None:
        used, joules = said.used, said.joules
        if min(used.device_in, used.device_out) < 0 or not 0 <= joules < math.inf:
            raise InvalidRequest("usage must be finite, and not negative")
        passed = self._leave(said.request)
        if passed is None:
            if not said.assigned or said.request in self._ended:
                return
            # It was assigned by a gateway that is gone, or over a connection that is.
            exchange_rate = (await self.caller()).terms.exchange_rate
            passed = _Passed(0, _Terms("", self._cloud.model, Prices(exchange_rate=exchange_rate)))
        self._ended[said.request] = None
        own = Used(device_in=used.device_in, device_out=used.device_out)
        usd = joules * passed.terms.prices.exchange_rate
        self._report(
            Bill(requests=1, used=own, joules=joules, device_usd=usd), 0, passed.terms, passed.number
        )
        await self._cloud.booked()

    def _book(self, reached: _Reached, taken_in: int, given_out: int) -> None:
        """Record what a session of the device at an endpoint has had, under the terms of the last assignment there.
        Input beyond what was announced at admission counts at the gate like output."""
        terms, server = reached.terms, reached.terms.prices.server
        bill = Bill(
            used=Used(server_in=taken_in, server_out=given_out),
            server_usd_in=server.of(taken_in, 0),
            server_usd_out=server.of(0, given_out),
        )
        unannounced = max(0, taken_in - self._announced)
        self._announced = max(0, self._announced - taken_in)
        self._report(bill, given_out + unannounced, terms)

    def _report(self, bill: Bill, tokens: int, terms: _Terms, request: int = 0) -> None:
        """Report a bill. request: the number of a request that is over with it."""
        self._cloud.report(
            Report(
                self.identity.account,
                self.name,
                tokens,
                False,
                bill,
                request=request,
                model=terms.model,
                mode=terms.mode,
            )
        )
