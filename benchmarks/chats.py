"""Chats with a server of OpenAI's API, as their client sees them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx


class Server(NamedTuple):
    """A chat server.

    url: of the API.
    extra: fields of each request.
    """

    url: str
    extra: Mapping[str, Any] = MappingProxyType({})


class Chat(NamedTuple):
    """One chat.

    tokens: number of the answer's.
    first_s, last_s: seconds to the first one, and to the last one.
    text: the answer.
    stats: what Tandem reports of it; empty for another server's.
    """

    tokens: int
    first_s: float
    last_s: float
    text: str
    stats: dict[str, Any]


async def chat(client: httpx.AsyncClient, server: Server, question: str, tokens: int) -> Chat:
    """Read one answer of at most so many tokens. Raises RuntimeError for a refusal, and for a stream that breaks."""
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    began_s, first_s, last_s, count = time.perf_counter(), 0.0, 0.0, 0
    text, stats = "", dict[str, Any]()
    async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as reply:
        if reply.status_code != 200:
            raise RuntimeError(f"{server.url}: {(await reply.aread()).decode()}")
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            part = json.loads(line[6:])
            if part.get("error"):
                raise RuntimeError(f"{server.url}: {part['error']['message']}")
            if said := "".join(choice["delta"].get("content") or "" for choice in part["choices"]):
                text += said
                last_s = time.perf_counter() - began_s
                first_s = first_s or last_s
            stats = (part.get("tandem") or {}).get("stats") or stats
            count = (part.get("usage") or {}).get("completion_tokens", count)
    return Chat(count, first_s, last_s, text, stats)


def ask(server: Server, questions: Sequence[str], tokens: int, at_once: int = 1) -> tuple[float, list[Chat]]:
    """Have the questions answered, so many at once; (tokens/s of all together, the chats)."""

    async def all_() -> tuple[float, list[Chat]]:
        left, chats = iter(questions), list[Chat]()
        # llama.cpp's server may end a connection that has been used
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client:

            async def one() -> None:
                for question in left:
                    chats.append(await chat(client, server, question, tokens))

            began_s = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(at_once)))
            return sum(c.tokens for c in chats) / (time.perf_counter() - began_s), chats

    return asyncio.run(all_())
