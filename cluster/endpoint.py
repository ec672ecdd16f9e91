"""Engines that other processes reach over the wire: listening for connections, or dialling in."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cluster.client import Connection, connect
from cluster.link import Link
from cluster.server import EngineHandler
from cluster.wire import DEFAULTS, WireSettings
from engine.base import Engine, EngineInfo


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Engines that listen. address: "host:port" to dial; connections: those that live."""

    address: str
    connections: Set[Connection]


@asynccontextmanager
async def serve_engines(
    engines: Mapping[str, Engine],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    links: Mapping[str, Link] | None = None,
    settings: WireSettings = DEFAULTS,
    on_connect: Callable[[Connection], None] | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve `engines` by name until the context is left; port 0 takes a free one.

    A lost connection cancels the sessions it opened. `links`: emulated links in front of engines, by name.
    `on_connect` is called with each connection after hello; whoever dialled in may serve engines over it
    (`connection.peer_engines`, `connection.engine(name)`). Raises ValueError for a host beyond this machine
    without a token.
    """
    if token is None and host != "localhost" and not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"listening on {host}, beyond this machine, needs a token")
    connections: set[Connection] = set()
    infos, serve = _infos(engines), _serve(engines, links)

    def accept() -> Connection:
        connection = Connection(infos, token, settings, True, serve)
        # Not before: asyncio says nothing more of a connection whose TLS handshake fails.
        connection.made.add_done_callback(lambda _: connections.add(connection))
        connection.finished.add_done_callback(lambda _: connections.discard(connection))
        if on_connect is not None:
            connection.ready.add_done_callback(lambda _: on_connect(connection))
        return connection

    loop = asyncio.get_running_loop()
    patience = settings.hello_s if tls else None
    server = await loop.create_server(
        accept, host, port, ssl=tls, ssl_handshake_timeout=patience, backlog=1024
    )
    try:
        name, port = server.sockets[0].getsockname()[:2]
        yield Endpoint(f"[{name}]:{port}" if ":" in name else f"{name}:{port}", connections)
    finally:
        server.close()
        await asyncio.gather(*(connection.close() for connection in list(connections)))


async def dial_in(
    address: str,
    engines: Mapping[str, Engine],
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    links: Mapping[str, Link] | None = None,
    settings: WireSettings = DEFAULTS,
) -> Connection:
    """Dial an endpoint and serve `engines` to it over that connection, as a device behind NAT does.

    Raises what `connect` raises.
    """
    return await connect(
        address,
        token=token,
        tls=tls,
        settings=settings,
        infos=_infos(engines),
        serve=_serve(engines, links),
    )


def _infos(engines: Mapping[str, Engine]) -> dict[str, EngineInfo]:
    return {name: engine.info for name, engine in engines.items()}


def _serve(
    engines: Mapping[str, Engine], links: Mapping[str, Link] | None
) -> Callable[[Connection], EngineHandler]:
    return lambda connection: EngineHandler(engines, links or {}, connection)
