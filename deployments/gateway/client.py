"""A device's connection to the gateway: dialled by the device, and again whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.frames import AlreadyConnected, Unauthorized
from tandem.cluster.wire.listener import dial_in
from tandem.cluster.wire.wire import WireSettings
from tandem.deployments.access.accounts import Statement
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
from tandem.deployments.request.assignment import Assignment, EndpointInfo, RoutingRequest
from tandem.engine.base import Engine, EngineError, EngineStopped, SplitInfo
from tandem.policies.cost import Used

log = logging.getLogger(__name__)

T = TypeVar("T")

REGISTER_S = 1.0
"""Between two words of how the device is doing."""
QUIET_S = 2.0
"""Seconds of silence after which the cloud counts as gone, though its connection may yet be resumed."""
WAIT_S, PING_S = 1.0, 0.2
"""Seconds of silence, or without a connection, after which a request that waits gives the cloud up; and between two
pings meanwhile."""
LEAST_S = 1e-3
"""Shortest pause of that watch, which rounding may have end too early."""
BACK_S = 30.0
"""Longest that half an answer waits for the gateway, or its successor, to be there again."""
AGAIN_S = 0.2, 5.0
"""Between two attempts to dial: at first, and at most."""


class Uplink:
    """registered: what the gateway has said last; None until it has."""

    def __init__(
        self,
        address: str,
        key: str,
        engine: Engine,
        record: Callable[[], DeviceRecord],
        *,
        tls: ssl.SSLContext | None = None,
        settings: WireSettings,
        model: str = "",
    ) -> None:
        """address: the gateway's, "host:port"; record: what the device says of itself, but for where it is reached;
        model: the cloud's that helps with requests from here; "": the gateway's choice."""
        self.registered: Registered | None = None
        self._address, self._key, self._tls, self._settings = address, key, tls, settings
        self._engine, self._record, self._model = engine, record, model
        self._instance = secrets.token_bytes(16)
        self._connection: Connection | None = None
        self._reached = asyncio.Event()  # the cloud knows the device by this connection
        self._given_up_s = float("-inf")  # when the cloud had last been heard that a request gave up
        self._lost_s = float("-inf")  # when the last connection was lost by which the cloud knew the device
        self._passed: set[int] = set()  # requests that have an assignment of the cloud's
        self._over: set[asyncio.Task[None]] = set()
        self._ended = False

    @property
    def up(self) -> bool:
        """Whether the gateway answers, and the cloud knows the device."""
        if not self._reached.is_set() or self.away:
            return False
        return self._quiet_s < QUIET_S and self._heard_s > self._given_up_s + LEAST_S

    async def back(self) -> bool:
        """Return whether it is up, or is again WAIT_S after its connection was lost, as when a gateway is replaced."""
        self._see_loss()
        left_s = self._lost_s + WAIT_S - asyncio.get_running_loop().time()
        if left_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._reached.wait()
        return self.up

    def _see_loss(self) -> None:
        """Record that the connection is lost, once."""
        if self._reached.is_set() and self._is_lost():
            self._reached.clear()
            self._lost_s = asyncio.get_running_loop().time()

    def _is_lost(self) -> bool:
        """Return whether there is no connection, nor one that may be resumed."""
        return self._connection is None or self._connection.closed.done()

    @property
    def _heard_s(self) -> float:
        """Time of the loop's clock when something last came from the cloud."""
        return asyncio.get_running_loop().time() - self._quiet_s

    @property
    def _quiet_s(self) -> float:
        """Seconds since something came from the cloud; infinite without a connection."""
        connection = self._connection
        return float("inf") if connection is None or self._is_lost() else connection.quiet_s

    def _silence_s(self, since_s: float) -> float:
        """Seconds for which nothing has come from the cloud since a time of the loop's clock; without a connection,
        those since its loss."""
        self._see_loss()
        now_s = asyncio.get_running_loop().time()
        return now_s - self._lost_s if self._is_lost() else min(self._quiet_s, now_s - since_s)

    @property
    def away(self) -> bool:
        """Whether the connection is broken and may be back."""
        return self.reached_s == float("inf")

    @property
    def reached_s(self) -> float:
        """Time of the loop's clock since which the connection is there; infinite while it is away."""
        return float("-inf") if self._connection is None else self._connection.reached_s

    @property
    def rtt_s(self) -> float:
        """Round-trip time to the gateway; 0 if unknown."""
        return 0.0 if self._connection is None else self._connection.rtt_s

    async def run(self) -> None:
        """Stay connected until cancelled. Raises Unauthorized, or AlreadyConnected where another program that shows the
        same key is there."""
        try:
            while True:
                self._connection = connection = await self._dialled()
                await self._stay(connection)
                self._see_loss()
                log.warning("the connection to %s is lost: %s", self._address, connection.reason)
                await asyncio.sleep(AGAIN_S[0])
        finally:
            self._ended = True
            if self._connection is not None:
                await self._connection.close()
            for telling in self._over:
                telling.cancel()

    async def connected(self) -> None:
        """Return when the cloud knows the device."""
        await self._reached.wait()

    async def while_there(self, result: Awaitable[T]) -> T:
        """Wait for it as long as the cloud is there: it is pinged often meanwhile. Raises EngineStopped."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()

        async def watch() -> None:
            while (left_s := WAIT_S - self._silence_s(began_s)) > 0:
                connection = self._connection
                if connection is not None and PING_S <= self._quiet_s < float("inf"):
                    connection.ping()
                await asyncio.sleep(max(min(left_s, PING_S), LEAST_S))
            self._given_up_s = self._heard_s
            limit.reschedule(loop.time())

        try:
            async with asyncio.timeout(None) as limit:
                watching = loop.create_task(watch())
                try:
                    return await result
                finally:
                    watching.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            raise EngineStopped(f"the cloud at {self._address} does not answer") from None

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        """Return the router's assignment; the device itself is here. Before the first token of an answer it waits
        WAIT_S at most for a cloud that has gone. Raises EngineError."""
        body = pack(replace(wanted, model=self._model))
        asking = self._insist(ASSIGN, body, BACK_S if wanted.sent else WAIT_S)
        if not wanted.sent:
            asking = self.while_there(asking)
        try:
            message = unpack(await asking, AssignmentMessage)
        except BaseException:  # the gateway may have let it pass all the same
            if wanted.request not in self._passed:
                self._say_over(Over(wanted.request, Used(), 0.0, assigned=False))
            raise
        self._passed.add(wanted.request)
        name = self.registered.name if self.registered else ""
        return message.assignment(
            {
                role: replace(e, rtt_s=0.0 if e.device and e.name == name else self.rtt_s)
                for role, e in message.endpoints.items()
            }
        )

    async def dial(self, endpoint: EndpointInfo) -> Engine:
        """Return the engine of a cloud endpoint. Raises EngineError."""
        return await self._connected().find(endpoint.key)

    def over(self, said: Over) -> None:
        """Report the end of a request to the cloud, if that had a part in it."""
        if said.request in self._passed:
            self._passed.discard(said.request)
            self._say_over(said)

    def _say_over(self, said: Over) -> None:
        """Report the end in the background, if need be to the gateway's successor."""
        if self._ended:  # there is no connection any more, and will be none
            return
        task = asyncio.get_running_loop().create_task(self._tell(said))
        self._over.add(task)
        task.add_done_callback(self._over.discard)

    async def account(self) -> Statement:
        """Return the usage of the device's key. Raises EngineError."""
        return unpack(await self._ask(ACCOUNT, pack(None)), Statement)

    async def middles(self) -> tuple[SplitInfo, ...]:
        """Return the splits of the model whose middle the cloud has. Raises EngineError."""
        return unpack(await self._ask(MIDDLES, pack(self._model)), tuple[SplitInfo, ...])

    async def echo_s(self, size_bytes: int) -> float:
        """Return the seconds that `size_bytes` take to the cloud and back. Raises EngineError."""
        now = asyncio.get_running_loop().time
        began_s = now()
        await self._ask(ECHO, bytes(size_bytes))
        return now() - began_s

    async def _tell(self, said: Over) -> None:
        try:
            await self._insist(OVER, pack(said), back_s=None)
        except EngineError as error:
            log.info("the gateway does not hear that a request is over: %s", error)

    async def _insist(self, method: str, body: bytes, back_s: float | None) -> bytes:
        """Ask the gateway, or its successor, which is waited for `back_s`; None: without end. Raises EngineError."""
        while True:
            self._see_loss()
            try:
                async with asyncio.timeout(back_s):
                    await self._reached.wait()
            except TimeoutError:
                raise EngineStopped(f"the cloud at {self._address} does not come back") from None
            assert self._connection is not None
            connection = self._connection
            try:
                return await connection.ask(method, body)
            except EngineStopped:
                if not connection.closed.done():
                    raise

    async def _ask(self, method: str, body: bytes) -> bytes:
        return await self.while_there(self._connected().ask(method, body))

    def _connected(self) -> Connection:
        if self._connection is None or self._is_lost():
            raise EngineStopped(f"there is no connection to the cloud at {self._address}")
        return self._connection

    async def _dialled(self) -> Connection:
        pause_s, longest_s = AGAIN_S
        while True:
            try:
                return await dial_in(
                    self._address,
                    {ENGINE: self._engine},
                    token=self._key,
                    tls=self._tls,
                    settings=self._settings,
                    instance=self._instance,
                )
            except (Unauthorized, AlreadyConnected):
                raise
            except EngineError as error:
                log.warning("no connection to %s: %s", self._address, error)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(longest_s, 2 * pause_s)

    async def _stay(self, connection: Connection) -> None:
        """Say how the device is doing until the connection is lost."""
        while not connection.closed.done():
            try:
                said = await connection.ask(REGISTER, pack(self._record()))
                self.registered = unpack(said, Registered)
                self._reached.set()
            except EngineError as error:
                log.warning("the gateway does not hear how the device is doing: %s", error)
            await asyncio.wait((connection.closed,), timeout=REGISTER_S)
