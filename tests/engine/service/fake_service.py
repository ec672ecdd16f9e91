"""A service with OpenAI's API, whose answers follow from their text alone; over sockets, and without any."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tandem.engine import family
from tandem.engine.service.config import ServiceConfig
from tandem.engine.service.engine import ServiceEngine
from tandem.engine.text.tokenizer import Tokenizer
from tests import servers

TOKENIZER = Tokenizer.load(family.path("target"))
WORDS = [
    text.decode()
    for i in range(TOKENIZER.vocab_size)
    if re.fullmatch(rb" [a-z]{3,}", text := TOKENIZER.token_bytes(i)) and TOKENIZER.encode_bytes(text) == [i]
]
"""Words of a token each."""
KEY_NAME, KEY = "TANDEM_TEST_SERVICE_KEY", "sk-for-these-tests"


def config(base_url: str = "http://service.test/v1", **settings: Any) -> ServiceConfig:
    return ServiceConfig(
        **{"base_url": base_url, "model": "big", "tokenizer": "target", "context": 512} | settings
    )


def next_word(text: str) -> str:
    """Return the word after a text."""
    return WORDS[crc32(text.encode()) % len(WORDS)]


def answer(text: str, words: int) -> str:
    """Return so many words after a text."""
    said = ""
    for _ in range(words):
        said += next_word(text + said)
    return said


def event(said: object) -> bytes:
    return b"data: " + (said if isinstance(said, bytes) else json.dumps(said).encode()) + b"\n\n"


def chunk(text: str, finish: str | None = None, chat: bool = False) -> bytes:
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    return event({"choices": [choice | ({"delta": {"content": text}} if chat else {"text": text})]})


def usage(tokens_in: int, tokens_out: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}})


DONE = event(b"[DONE]")


@dataclass
class FakeService:
    """Answers as told by `faults`, one for a request; without one, with as many words as asked for.

    seen: bodies of the requests.
    keys: their Authorization headers.
    streams: answers under way.
    """

    faults: deque[Callable[[dict[str, Any]], Awaitable[Response] | Response]] = field(default_factory=deque)
    seen: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    streams: int = 0

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(path, self._reply, methods=["POST"])
                for path in ("/v1/completions", "/v1/chat/completions")
            ]
        )

    async def _reply(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.faults:
            made = self.faults.popleft()(body)
            return made if isinstance(made, Response) else await made
        return StreamingResponse(self._words(body), media_type="text/event-stream")

    async def _words(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            chat, text = "messages" in body, asked(body)
            said = ""
            yield b": a comment\r\n\r\n"
            for n in range(body["max_tokens"]):
                said += (word := next_word(text + said))
                last = n + 1 == body["max_tokens"]
                yield chunk(word, "length" if last else None, chat)
                await asyncio.sleep(0)
            yield usage(len(text.split()), body["max_tokens"])
            yield DONE
        finally:
            self.streams -= 1


def asked(body: dict[str, Any]) -> str:
    """Return the text that a request wants to have continued."""
    if "prompt" in body:
        return str(body["prompt"])
    return "".join(f"{message['content']}" for message in body["messages"])


def refusing(status: int, error: dict[str, Any], **headers: str) -> Callable[[dict[str, Any]], Response]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: JSONResponse({"error": error}, status, named)


@asynccontextmanager
async def served(service: FakeService) -> AsyncIterator[str]:
    """Serve it over sockets; yields its base_url."""
    async with servers.served(service.app) as address:
        yield f"{address}/v1"


Piece = bytes | float | Exception
"""Bytes of a body, seconds until the next ones, or how it breaks."""


class Transport(httpx.AsyncBaseTransport):
    """A service without a network: each request gets the next reply, a status with headers and the pieces of a body.

    seen: bodies of the requests; headers: of the last one; closed: how many replies were closed.
    """

    def __init__(self, *replies: tuple[int, dict[str, str], list[Piece]] | Exception) -> None:
        self._replies = deque(replies)
        self.seen: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.closed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(json.loads(request.content))
        self.headers = dict(request.headers)
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        status, headers, pieces = reply
        return httpx.Response(status, headers=headers, stream=_Body(self, pieces))


class _Body(httpx.AsyncByteStream):
    def __init__(self, transport: Transport, pieces: list[Piece]) -> None:
        self._transport, self._pieces = transport, pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                yield piece

    async def aclose(self) -> None:
        self._transport.closed += 1


def engine_of(transport: Transport, **settings: Any) -> ServiceEngine:
    return ServiceEngine(config(**settings), TOKENIZER, transport)


def said(*pieces: Piece) -> tuple[int, dict[str, str], list[Piece]]:
    """A reply that is well."""
    return 200, {}, list(pieces)
