"""Streams of a service over HTTP: requests, the chunks of their answers, and their failures as an engine's errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import httpx

from tandem.engine.base import (
    ContentFiltered,
    ContextOverflow,
    EngineError,
    EngineStopped,
    InvalidRequest,
    NoCapacity,
    Usage,
)
from tandem.engine.service.condition import Condition
from tandem.engine.service.config import ServiceConfig
from tandem.engine.service.sse import BrokenStream, EventParser

PATHS = {"completions": "/completions", "chat": "/chat/completions"}
RETRY_S = 1.0
"""Seconds to wait where a service is full and does not say how long."""
SHOWN = 300
"""Most characters of a service's message in an error."""
REASON_BYTES = 65_536
"""Most bytes that are read of a refusal."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of an answer.

    text: text that it adds.
    finish: why the answer ended, as the service says; None before.
    usage: the service's count of all tokens; None but at the end.
    """

    text: str = ""
    finish: str | None = None
    usage: Usage | None = None


class ServiceClient:
    """Connection to a service. Every failure is an EngineError: EngineStopped if another endpoint may do better,
    NoCapacity if the service will have room later, InvalidRequest if it refuses the request itself, ServiceRefused if
    it refuses every request of this application."""

    def __init__(self, config: ServiceConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """transport: in place of the network. Raise ValueError without the key's environment variable."""
        self._config, self._key = config, config.key()
        self.condition = Condition(config.model, config.base_url)
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        connections = httpx.Limits(max_connections=None, max_keepalive_connections=config.max_sessions)
        self._http = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(None, connect=config.connect_s),
            limits=connections,
            transport=transport,
        )

    async def stream(self, body: Mapping[str, Any], trace: str = "") -> AsyncGenerator[Chunk, None]:
        """Yield an answer's chunks up to its end. Raise EngineError, also for a stream that ends before. trace: as in
        Sampling."""
        config, now = self._config, asyncio.get_running_loop().time
        url = config.base_url + PATHS[config.route]
        headers = {"traceparent": trace} if trace else {}
        request = self._http.build_request("POST", url, json=body, headers=headers)
        limit_s, what = now() + config.first_s, f"no token within {config.first_s:g} s"
        with self._explained():
            async with _until(limit_s, what):
                reply = await self._http.send(request, stream=True)
            try:
                if not reply.is_success:
                    async with _until(limit_s, what):
                        raise self._refusal(reply.status_code, reply.headers, await _beginning(reply))
                self.condition.serves()
                parser, parts = EventParser(), reply.aiter_bytes()
                finished = False
                while True:
                    async with _until(limit_s, what):
                        data = await anext(parts, None)
                    if data is None:
                        break
                    for event in parser.push(data):
                        if event == "[DONE]":
                            if not finished:
                                raise BrokenStream("it says it is done without saying why")
                            return
                        chunk = self._chunk(event)
                        finished = finished or chunk.finish is not None
                        if chunk.text or finished:
                            limit_s, what = now() + config.step_s, f"silent for {config.step_s:g} s"
                        yield chunk
                if not finished or parser.unfinished:
                    raise BrokenStream("it ends inside the answer")
            finally:
                await reply.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def _chunk(self, event: str) -> Chunk:
        try:
            said = json.loads(event)
            if error := said.get("error"):
                raise self._refusal(int(_field(error, "code", int) or 500), {}, event.encode())
            choices = said.get("choices") or [{}]
            text = choices[0].get("text")
            if text is None:
                text = (choices[0].get("delta") or {}).get("content")
            return Chunk(text or "", choices[0].get("finish_reason"), _usage(said.get("usage")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BrokenStream(f"an event is no part of an answer: {error}") from None

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> EngineError:
        """Return the error that a reply stands for."""
        error: Any = None
        try:
            error = json.loads(body)
            error = error.get("error", error)
        except (ValueError, AttributeError):
            pass
        message = _field(error, "message", str) or body.decode("utf-8", "replace").strip()
        code = _field(error, "code", str) or _field(error, "type", str) or ""
        said = self._message(f"the service says: {message or 'nothing'} (HTTP {status})")
        if "content_filter" in code:
            return ContentFiltered(said)
        if "context_length" in code or "exceed_context" in code:
            return ContextOverflow(said)
        if (refused := self.condition.refused(status, code)) is not None:
            return refused
        if status in (400, 413, 422):
            return InvalidRequest(said)
        if status in (408, 409, 429, 503, 529):
            return NoCapacity(said, _retry_after_s(headers.get("retry-after")))
        return EngineStopped(said)

    def _message(self, text: str) -> str:
        """Return a message without the key, which some services repeat."""
        if self._key is not None:
            text = text.replace(self._key, "…")
        return text if len(text) <= SHOWN else text[:SHOWN] + "…"

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn failures of the connection into EngineStopped."""
        where = self._config.base_url
        try:
            yield
        except BrokenStream as error:
            raise EngineStopped(self._message(f"the stream of {where} is broken: {error}")) from None
        except _Silence as error:
            raise EngineStopped(f"{where}: {error}") from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise EngineStopped(self._message(f"the connection to {where} failed: {why}")) from None


class _Silence(Exception):
    """The service says nothing for too long."""


@asynccontextmanager
async def _until(at_s: float, what: str) -> AsyncIterator[None]:
    """Limit a wait to a time of the loop's clock. Raise _Silence after it."""
    try:
        async with asyncio.timeout_at(at_s):
            yield
    except TimeoutError:
        raise _Silence(what) from None


async def _beginning(reply: httpx.Response) -> bytes:
    """Return the first bytes of a body, which may be endless."""
    data = b""
    async for part in reply.aiter_bytes():
        data += part
        if len(data) >= REASON_BYTES:
            break
    return data[:REASON_BYTES]


def _field(error: Any, name: str, kind: type) -> Any:
    """Return a field of an error object, if it is of that kind."""
    value = error.get(name) if isinstance(error, dict) else None
    return value if isinstance(value, kind) else None


def _usage(said: Any) -> Usage | None:
    """Return the counts of a usage object; None without both."""
    tokens_in, tokens_out = _field(said, "prompt_tokens", int), _field(said, "completion_tokens", int)
    return None if tokens_in is None or tokens_out is None else Usage(tokens_in, tokens_out)


def _retry_after_s(value: str | None) -> float:
    """Return the seconds of a Retry-After header, which may also be a date."""
    if value is None:
        return RETRY_S
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time())
    except ValueError:
        return RETRY_S
