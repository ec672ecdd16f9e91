"""Common part of replicas on the wire: an engine, a server for it, its address, its backlog, its drain."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

from pydantic import Field

from tandem.cluster.wire.address import reachable
from tandem.cluster.wire.listener import serve_engines
from tandem.cluster.wire.tls import contexts
from tandem.deployments.config.settings import Strict
from tandem.deployments.pools.autoscaling import as_numbers, replica_state
from tandem.deployments.pools.engines import AnySettings, MiddleSettings, ServiceSettings, build_engine
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.engine.base import EngineStopped

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


class EngineEndpoint:
    """A Serve replica whose engine is driven over the wire, past Serve's own request path.

    Serve therefore sees none of this work: the replica itself reports its backlog, is not listed while it drains, and
    outlives its last session.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, pool: str, engine: AnySettings | MiddleSettings, settings: EndpointSettings
    ) -> None:
        self.pool, self._settings = pool, settings
        self._exit = AsyncExitStack()
        self._engine = await asyncio.to_thread(build_engine, engine)
        self._exit.push_async_callback(self._engine.close)
        server = await self._exit.enter_async_context(
            serve_engines({pool: self._engine}, settings.host, auth=settings.token, tls=settings.listening())
        )
        self._address = reachable(server.address)
        self._draining, self._waiting, self._places = False, 0.0, engine.batch_limit
        self._price = engine.price if isinstance(engine, ServiceSettings) else None
        logger.info("%s serves %s at %s", pool, self._engine.info.model, self._address)

    async def state(self, waiting: float = 0.0) -> EndpointInfo | None:
        """Return address and load for the scheduler; None while draining, so that no new session is sent here.

        waiting: its share of the requests without a replica, which it passes on to autoscaling.
        """
        self._waiting = waiting
        if self._draining:
            return None
        stats, info = await self._engine.stats(), self._engine.info
        return EndpointInfo(
            name=f"{self.pool} {self._address}",
            address=self._address,
            engine=self.pool,
            model=info.model,
            vocabulary=info.vocabulary,
            sessions=stats.sessions,
            load=Load.of(stats),
            split=info.split,
            price=self._price,
            continuation=info.continuation,
            refusal=stats.refusal,
            rests=stats.rest_s > 0,
        )

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the numbers that Serve passes to `deployments.pools.serve_policy.ServePolicy`."""
        return as_numbers(replica_state("", await self._engine.stats(), self._places), self._waiting)

    async def wake(self) -> None:
        """Return when a replica is there: Serve starts one for this call."""

    async def check_health(self) -> None:
        """Serve replaces the replica when its engine no longer answers."""
        async with asyncio.timeout(10.0):
            await self._engine.stats()

    async def __del__(self) -> None:
        """Drain: Serve calls this before it stops the replica. Sessions left after drain_s move elsewhere."""
        self._draining = True
        try:
            async with asyncio.timeout(self._settings.drain_s):
                while (await self._engine.stats()).sessions:  # noqa: ASYNC110 (engines have no such event)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            logger.warning("%s stops with sessions still open", self.pool)
        except EngineStopped:
            pass  # it has broken down: there is nothing to wait for
        finally:
            await self._exit.aclose()
