"""Engines that other processes reach over the wire: listening for connections, or dialling in."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from tandem.cluster.wire.acceptor import Acceptor, Admit
from tandem.cluster.wire.address import is_loopback, joined, split
from tandem.cluster.wire.client import Connection, Handler, connect
from tandem.cluster.wire.server import EngineHandler
from tandem.cluster.wire.wire import DEFAULTS, WireSettings
from tandem.engine.base import Engine, EngineInfo

_BACKLOG = 1024  # connections that may wait to be accepted: all of a host's devices may come at once


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Listening engines. address: "host:port" to dial; connections: living ones."""

    address: str
    connections: Set[Connection]


@asynccontextmanager
async def serve_engines(
    engines: Mapping[str, Engine],
    address: str = "127.0.0.1:0",
    *,
    auth: str | Admit | None = None,
    tls: ssl.SSLContext | None = None,
    settings: WireSettings = DEFAULTS,
    on_connect: Callable[[Connection], None] | None = None,
    handler: Callable[[Connection], Handler] | None = None,
) -> AsyncIterator[Endpoint]:
    """Serve `engines` by name until the context is left, on a host and port; port 0 takes a free one. At a port that is
    named, a successor of the same user may listen before its predecessor ends; both get connections meanwhile.

    A lost connection cancels the sessions it opened.

    auth: the shared token, or a function that returns who has the token that came (`connection.peer`) or raises the
        EngineError that keeps them out; it is asked again when a connection is resumed, within `hello_s`.
    on_connect: called with each connection after hello; its peer may serve engines over it
        (`connection.peer_engines`, `connection.engine(name)`).
    handler: serves a connection in place of an EngineHandler with these engines.

    Raises ValueError for a host beyond this machine without `auth`.
    """
    host, port = split(address)
    if not auth and not is_loopback(host):
        raise ValueError(f"listening on {host}, beyond this machine, needs a token")
    serve = handler or partial(EngineHandler, engines)
    acceptor = Acceptor(_infos(engines), auth or "", settings, serve, on_connect)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG, reuse_port=port != 0)
    listening.setblocking(False)
    accepting = asyncio.get_running_loop().create_task(acceptor.accept(listening, tls))
    try:
        yield Endpoint(joined(*listening.getsockname()[:2]), acceptor.connections)
    finally:
        accepting.cancel()
        await asyncio.wait((accepting,))
        listening.close()
        await acceptor.close()


async def dial_in(
    address: str,
    engines: Mapping[str, Engine],
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    settings: WireSettings = DEFAULTS,
    instance: bytes = b"",
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
        serve=partial(EngineHandler, engines),
        instance=instance,
    )


def _infos(engines: Mapping[str, Engine]) -> dict[str, EngineInfo]:
    return {name: engine.info for name, engine in engines.items()}
