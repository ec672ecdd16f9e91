"""Dialling an endpoint: once for a new connection, and again and again for one that broke."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping

from tandem.cluster.wire.address import split
from tandem.cluster.wire.frames import (
    AnyFrame,
    Error,
    Hello,
    ProtocolError,
    UnknownConnection,
    Welcome,
    encode,
)
from tandem.cluster.wire.handshake import Greeting
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.cluster.wire.wire import WireSettings
from tandem.engine.base import EngineError, EngineInfo, EngineStopped

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
PROCESSES = 4
"""Dials at which the connection is unknown before it counts as lost: several processes may listen at the address."""
_WELCOME_BYTES = 1024 * 1024  # names the engines of a host, thousands perhaps


class Dialler:
    """Dials "host:port" and says hello, with the same token, TLS, engines and instance each time."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: ssl.SSLContext | None,
        settings: WireSettings,
        infos: Mapping[str, EngineInfo],
        instance: bytes = b"",
    ) -> None:
        self.address, self._instance = address, instance
        self._token, self._tls, self._settings, self._infos = token or "", tls, settings, dict(infos)

    async def dial(
        self, resume_buffer: ResumeBuffer | None = None
    ) -> tuple[asyncio.Transport, Welcome | Error]:
        """Return a transport whose reading is paused, and the other side's reply to our hello. `resume_buffer`: of the
        connection to resume.

        Raises EngineStopped if there is no answer in time, ProtocolError if it makes no sense.
        """
        loop = asyncio.get_running_loop()
        hello_s = self._settings.hello_s
        until_s = loop.time() + hello_s
        try:
            host, port = split(self.address)
            async with asyncio.timeout_at(until_s):
                _, answer = await loop.create_connection(_Answer, host, port, ssl=self._tls)
        except (OSError, ValueError, TimeoutError) as error:
            raise EngineStopped(f"no connection to {self.address}: {error or 'no answer'}") from None
        try:
            answer.transport.write(encode(self._hello(resume_buffer)))
            async with asyncio.timeout_at(until_s):
                frame = await answer.frame
            if not isinstance(frame, Welcome | Error):
                raise ProtocolError(f"a {type(frame).__name__} frame came before hello")
            if answer.transport.is_closing():  # its loss would not be reported
                raise EngineStopped(f"the connection to {self.address} was lost at once")
        except TimeoutError:
            answer.transport.abort()
            raise ProtocolError(f"no hello within {hello_s} s") from None
        except BaseException:
            answer.transport.abort()
            raise
        return answer.transport, frame

    def _hello(self, resume_buffer: ResumeBuffer | None) -> Hello:
        name, received = (b"", 0) if resume_buffer is None else (resume_buffer.name, resume_buffer.tell())
        resume_s = self._settings.resume_s
        return Hello(0, 0, "", self._token, self._infos, resume_s, name, received, self._instance)

    async def dial_again(self, resume_buffer: ResumeBuffer) -> tuple[asyncio.Transport, Welcome]:
        """Dial until the other side resumes the connection; the caller limits how long.

        Raises the EngineError of a permanent refusal.
        """
        pause_s, unknown = _FIRST_PAUSE_S, 0
        while True:
            try:
                transport, frame = await self.dial(resume_buffer)
                if isinstance(frame, Welcome):
                    return transport, frame
                transport.abort()
                refusal = frame.exception()
            except EngineError:  # the answer may come from a captive portal, not the other side
                refusal = None
            if isinstance(refusal, UnknownConnection) and (unknown := unknown + 1) < PROCESSES:
                continue
            if refusal is not None and not isinstance(refusal, EngineStopped):
                raise refusal
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # not all devices at the same moment
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Answer(Greeting):
    """Reads what the other side says to hello."""

    def __init__(self) -> None:
        super().__init__(_WELCOME_BYTES)
        self.frame: asyncio.Future[AnyFrame] = asyncio.get_running_loop().create_future()

    def came(self, frame: AnyFrame) -> None:
        if not self.frame.done():  # the waiter may have left
            self.frame.set_result(frame)

    def failed(self, error: ProtocolError) -> None:
        if not self.frame.done():
            self.frame.set_exception(error)
