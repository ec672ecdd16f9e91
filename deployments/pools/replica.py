"""Common part of replicas on the wire: an engine, a server for it, its address, its backlog, its drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Collection, Mapping, Set
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from tandem.cluster.wire.address import joined, reachable
from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.tls import contexts
from tandem.deployments.config.settings import Strict
from tandem.deployments.messages import carry_messages
from tandem.deployments.pools.autoscaling import WAITING, as_numbers, replica_state
from tandem.deployments.pools.engines import AnySettings, MiddleSettings, ServiceSettings, build_engine
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.serve_log import join_serves_log
from tandem.deployments.tracing.engine import traced
from tandem.deployments.tracing.exporter import Exporter
from tandem.engine.base import Engine, EngineStopped, HandsOver
from tandem.policies.estimators.overdue import HUNG_S

logger = logging.getLogger("ray.serve")


class TlsSettings(Strict):
    """PEM files, on every machine of the application.

    certificate, key: certificate of every process, and its key.
    authority: authority that must have signed the peers' certificates.
    """

    certificate: Path
    key: Path
    authority: Path

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the TLS contexts, see `cluster.wire.tls.contexts`."""
        return contexts(self.certificate, self.key, self.authority)


class EndpointSettings(Strict):
    """host: interface on which endpoints listen; loopback unless devices or replicas are on other machines.
    token: shared secret that a connection must present; it is never printed.
    tls: TLS between the API, replicas and devices; null: unencrypted.
    drain_s: how long an ending replica lets its sessions finish before they move elsewhere.
    """

    host: str = "127.0.0.1"
    token: str | None = Field(None, repr=False)
    tls: TlsSettings | None = None
    drain_s: float = 10.0

    def listening(self) -> ssl.SSLContext | None:
        """Return the TLS context of a listener, or None."""
        return None if self.tls is None else self.tls.contexts()[0]

    def dialling(self) -> ssl.SSLContext | None:
        """Return the TLS context of a dialler, or None."""
        return None if self.tls is None else self.tls.contexts()[1]


class _Part(NamedTuple):
    """An engine of a replica. settings: its own; address: where it is served; connections: of those who use it."""

    engine: Engine
    settings: AnySettings | MiddleSettings
    address: str
    connections: Set[Connection]

    def name(self, pool: str) -> str:
        """Return the name by which operators know it."""
        return f"{pool} {self.address}"

    async def drain(self, within_s: float) -> None:
        """Wait until no session is left; after `within_s`, have those that are go on elsewhere."""
        if isinstance(self.engine, HandsOver):
            self.engine.hand_over((await self.engine.stats()).waiting)
        try:
            async with asyncio.timeout(within_s):
                while (await self.engine.stats()).sessions:  # noqa: ASYNC110 (engines have no such event)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            for connection in list(self.connections):
                connection.fail(EngineStopped("an operator drains this replica"))

    async def endpoint(self, pool: str) -> EndpointInfo | None:
        """Return address and load; None while the engine hangs."""
        stats, info, settings = await self.engine.stats(), self.engine.info, self.settings
        if stats.overdue_s > 0:
            return None
        return EndpointInfo(
            name=self.name(pool),
            address=self.address,
            engine=pool,
            model=info.model,
            vocabulary=info.vocabulary,
            sessions=stats.sessions,
            load=Load.of(stats, settings.batch_limit),
            split=info.split,
            price=settings.price if isinstance(settings, ServiceSettings) else None,
            continuation=info.continuation,
            refusal=stats.refusal,
            rests=stats.rest_s > 0,
        )


class EngineEndpoint:
    """A Serve replica whose engine is driven over the wire, past Serve's own request path. Where a pool has several
    services, a replica has an engine for each, and an address.

    Serve therefore sees none of this work: the replica itself reports its backlog, is not listed while it drains, and
    outlives its last session.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, pool: str, engine: AnySettings | MiddleSettings, settings: EndpointSettings
    ) -> None:
        join_serves_log()
        carry_messages()
        self.pool, self._settings = pool, settings
        self._exit = AsyncExitStack()
        self._exporter = Exporter.of_environment(pool)
        if self._exporter is not None:
            self._exit.push_async_callback(self._exporter.close)
        each = engine.services if isinstance(engine, ServiceSettings) else (engine,)
        self._draining, self._waiting = False, 0.0
        self._drains: dict[str, asyncio.Task[None]] = {}  # by the part's name
        self._parts: list[_Part] = []  # known to __del__ if one of them cannot start
        for part in each:
            self._parts.append(await self._start(part))

    async def _start(self, settings: AnySettings | MiddleSettings) -> _Part:
        """Make an engine and serve it."""
        engine = await asyncio.to_thread(build_engine, settings)
        self._exit.push_async_callback(engine.close)
        at = self._settings
        reached = traced(engine, self._exporter)
        server = await self._exit.enter_async_context(
            serve_engines({self.pool: reached}, joined(at.host, 0), auth=at.token, tls=at.listening())
        )
        part = _Part(engine, settings, reachable(server.address), server.connections)
        logger.info("%s serves %s at %s", self.pool, engine.info.model, part.address)
        return part

    async def state(self, waiting: float = 0.0, drained: Collection[str] = ()) -> list[EndpointInfo]:
        """Return addresses and loads for the scheduler; nothing while draining, so that no new session is sent here.

        waiting: its share of the requests without a replica, which it passes on to autoscaling.
        drained: names of replicas, also others, that operators want without sessions.
        """
        self._waiting = waiting * len(self._parts)  # the scheduler counts addresses
        for part in self._parts:
            self._drain(part, part.name(self.pool) in drained)
        if self._draining:
            return []
        listed = [await part.endpoint(self.pool) for part in self._parts]
        return [endpoint for endpoint in listed if endpoint is not None]

    def _drain(self, part: _Part, wanted: bool) -> None:
        """Begin to drain a part, or end that."""
        name = part.name(self.pool)
        if not wanted:
            if (draining := self._drains.pop(name, None)) is not None:
                draining.cancel()
        elif name not in self._drains:
            logger.info("an operator drains %s", name)
            draining = asyncio.get_running_loop().create_task(part.drain(self._settings.drain_s))
            self._drains[name] = draining

    async def hand_over(self, counts: Mapping[str, int]) -> None:
        """Have sessions that only wait go elsewhere. counts: how many, by address, also of other replicas."""
        for part in self._parts:
            if (count := counts.get(part.address)) and isinstance(part.engine, HandsOver):
                logger.info("%s at %s hands %d waiting sessions over", self.pool, part.address, count)
                part.engine.hand_over(count)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the numbers that Serve passes to `deployments.pools.serve_policy.ServePolicy`: sums over services."""
        numbers = [
            as_numbers(replica_state("", await part.engine.stats(), part.settings.batch_limit), 0.0)
            for part in self._parts
        ]
        return {name: sum(each[name] for each in numbers) for name in numbers[0]} | {WAITING: self._waiting}

    async def wake(self) -> None:
        """Return when a replica is there: Serve starts one for this call."""

    async def check_health(self) -> None:
        """Raise if an engine no longer answers, or hangs, so that Serve replaces the replica."""
        async with asyncio.timeout(10.0):
            await self._sessions()

    async def _sessions(self) -> int:
        """Return the number of open sessions. Raises EngineStopped if an engine hangs."""
        each = [await part.engine.stats() for part in self._parts]
        if (overdue_s := max((stats.overdue_s for stats in each), default=0.0)) > HUNG_S:
            raise EngineStopped(f"a step of the engine is {overdue_s:.0f} s overdue")
        return sum(stats.sessions for stats in each)

    async def __del__(self) -> None:
        """Drain: Serve calls this before it stops the replica. Sessions left after drain_s move elsewhere."""
        self._draining = True
        try:
            async with asyncio.timeout(self._settings.drain_s):
                while await self._sessions():  # noqa: ASYNC110 (engines have no such event)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logger.warning("%s stops with sessions still open", self.pool)
        except EngineStopped:
            pass  # it has broken down: there is nothing to wait for
        finally:
            await self._exit.aclose()
