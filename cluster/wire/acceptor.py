"""Accepts incoming connections: hello, authentication, and the begin or resumption of a connection.

Until then a peer is unproven: it may send little, and only a limited number are received at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from tandem.cluster.wire.client import Connection, Handler
from tandem.cluster.wire.frames import (
    AnyFrame,
    Error,
    Hello,
    ProtocolError,
    Unauthorized,
    UnknownConnection,
    Welcome,
    encode,
)
from tandem.cluster.wire.handshake import Greeting
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import EngineError, EngineInfo, EngineStopped

log = logging.getLogger(__name__)

HELLO_BYTES = 16 * 1024
"""Largest hello: a token, and what a device says of its engine, some hundred bytes each."""
UNPROVEN = 256
"""Receptions at once. One more takes the place of the oldest that waits for its peer; where all wait for their
look-up, the newcomer is refused."""
_ACCEPT_AGAIN_S = 1.0  # after an error, such as that the process has no file descriptors left

Admit = Callable[[Hello], Awaitable[object]]


class Acceptor:
    """Shared state of all receptions of an endpoint.

    auth: the shared token, or a function that returns who has the token that came.
    connections: living ones.
    receptions: running ones, oldest first.
    """

    def __init__(
        self,
        infos: Mapping[str, EngineInfo],
        auth: str | Admit,
        settings: WireSettings,
        serve: Callable[[Connection], Handler],
        on_connect: Callable[[Connection], None] | None,
    ) -> None:
        self.settings, self.auth = settings, auth
        self.connections: set[Connection] = set()
        self.receptions: dict[Reception, None] = {}
        self._infos = dict(infos)
        self._serve, self._on_connect = serve, on_connect
        # By the digest of the name: how long a look-up takes says nothing about a name.
        self._resumable: dict[bytes, tuple[Connection, ResumeBuffer]] = {}

    async def accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Receive what dials the socket, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                dialled, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("no connection can be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self.receptions) >= UNPROVEN:
                if (waiting := next((r for r in self.receptions if not r.admitting), None)) is None:
                    dialled.close()
                    continue
                waiting.drop()
            self.receptions[Reception(self, dialled, tls)] = None
            await asyncio.sleep(0)  # yield to admitted peers, however many more dial

    def enter(self, hello: Hello, who: object, transport: asyncio.Transport) -> None:
        """Let an admitted peer in, on a new connection or back on the broken one.

        Raises UnknownConnection, Unauthorized, ProtocolError.
        """
        if hello.name:
            self._resume(hello, who, transport)
        else:
            self._begin(hello, who, transport)

    def _begin(self, hello: Hello, who: object, transport: asyncio.Transport) -> None:
        resume_buffer = None
        if hello.resume_s and self.settings.resume_s:
            resume_s = min(self.settings.resume_s, hello.resume_s)
            resume_buffer = ResumeBuffer(secrets.token_bytes(16), resume_s, self.settings.max_kept)
        connection = Connection(hello.engines, self.settings, self._serve, resume_buffer)
        connection.peer, connection.siblings = who, self.connections
        self.connections.add(connection)
        connection.finished.add_done_callback(lambda _: self.connections.discard(connection))
        if resume_buffer is None:
            welcome = Welcome(0, 0, self._infos)
        else:
            welcome = Welcome(0, 0, self._infos, resume_buffer.resume_s, resume_buffer.name)
            digest = hashlib.sha256(resume_buffer.name).digest()
            self._resumable[digest] = connection, resume_buffer
            connection.closed.add_done_callback(lambda _: self._resumable.pop(digest))
        transport.write(encode(welcome))
        connection.attach(transport)
        if self._on_connect is not None:
            asyncio.get_running_loop().call_soon(self._on_connect, connection)

    def _resume(self, hello: Hello, who: object, transport: asyncio.Transport) -> None:
        connection, resume_buffer = self._resumable.get(hashlib.sha256(hello.name).digest(), (None, None))
        if connection is None or resume_buffer is None or connection.ended:
            raise UnknownConnection("this side does not know the connection any more")
        if who != connection.peer:
            raise Unauthorized("the connection is somebody else's")
        resume_buffer.check(hello.received)
        if not connection.away:  # its side has noticed first: another network, another address
            connection.part("the other side came back on another connection")
        transport.write(encode(Welcome(0, 0, self._infos, resume_buffer.resume_s, b"", resume_buffer.tell())))
        connection.resume(transport, hello.received)

    async def close(self) -> None:
        """Drop all receptions, and close all connections."""
        receptions = [reception.leave() for reception in list(self.receptions)]
        await asyncio.gather(*receptions, *(connection.close() for connection in list(self.connections)))


class Reception(Greeting):
    """Receives one peer: reads hello, has the token checked and hands the transport on, all within `hello_s`, for which
    a TLS handshake may take as long again."""

    def __init__(self, acceptor: Acceptor, dialled: socket.socket, tls: ssl.SSLContext | None) -> None:
        super().__init__(HELLO_BYTES)
        self._acceptor, self._socket = acceptor, dialled
        self._timer: asyncio.TimerHandle | None = None
        self._opening = asyncio.get_running_loop().create_task(self._open(tls))
        self._admitting: asyncio.Task[None] | None = None

    async def _open(self, tls: ssl.SSLContext | None) -> None:
        patience_s = self._acceptor.settings.hello_s if tls else None
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self, self._socket, ssl=tls, ssl_handshake_timeout=patience_s
            )
        except OSError as error:  # of the handshake
            log.info("a connection came to nothing: %s", error)
            self._end()

    @property
    def admitting(self) -> bool:
        """Whether its token is being looked up."""
        return self._admitting is not None and not self._admitting.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self not in self._acceptor.receptions:  # dropped meanwhile
            self.transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._acceptor.settings.hello_s, self._late)

    def came(self, frame: AnyFrame) -> None:
        if not isinstance(frame, Hello):
            self._refuse(ProtocolError(f"a {type(frame).__name__} frame came before hello"))
        elif callable(auth := self._acceptor.auth):
            self._admitting = asyncio.get_running_loop().create_task(self._admit(auth, frame))
        else:
            try:
                _check(frame.token, auth)
                self._enter(frame, None)
            except EngineError as error:
                self._refuse(error)

    async def _admit(self, admit: Admit, hello: Hello) -> None:
        try:
            self._enter(hello, await admit(hello))
        except EngineError as error:
            self._refuse(error)
        except Exception:
            log.exception("authentication failed unexpectedly")
            # No more than for now: a connection that broke tries again.
            self._refuse(EngineStopped("authentication failed unexpectedly"))

    def _enter(self, hello: Hello, who: object) -> None:
        if self.transport.is_closing():
            self._end()
            return
        self._acceptor.enter(hello, who, self.transport)
        self._end()

    def _late(self) -> None:
        hello_s = self._acceptor.settings.hello_s
        if self._admitting is None:
            self._refuse(ProtocolError(f"no hello within {hello_s} s"))
        else:
            self._admitting.cancel()
            self._refuse(EngineStopped(f"authentication took longer than {hello_s} s"))

    def failed(self, error: ProtocolError) -> None:
        self._refuse(error)

    def _refuse(self, error: EngineError) -> None:
        """Say why, and close; what the other side does not take in time is dropped."""
        if not self.transport.is_closing():
            self.transport.pause_reading()
            self.transport.write(encode(Error.of(error)))
            self.transport.close()
        self._heard = True
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._acceptor.settings.hello_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._admitting is not None:
            self._admitting.cancel()
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._acceptor.receptions.pop(self, None)

    def drop(self) -> None:
        """Close the connection without a word."""
        if self._timer is None:  # no transport yet
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends a handshake in whatever state
        else:
            self.transport.abort()
        self._end()

    async def leave(self) -> None:
        """Drop it; returns when nothing of it runs."""
        self.drop()
        running = [self._opening]
        if self._admitting is not None:
            self._admitting.cancel()
            running.append(self._admitting)
        await asyncio.wait(running)


def _check(token: str, shared: str) -> None:
    """Raises Unauthorized if it is not the shared token."""
    if not hmac.compare_digest(token.encode(), shared.encode()):
        raise Unauthorized("the shared token is not the right one")
