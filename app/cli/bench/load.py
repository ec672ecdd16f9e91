"""The load generator of `tandem bench`: streams requests at a server and times what comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from tandem.app.client.http import TIMEOUT, ClientError, authorization, event, explained, refusal

PROMPTS = (
    "Tell me about the town of Marworth.",
    "What is known about its history?",
    "Write a short story about a machine.",
    "Compare two people you know of.",
    "Give me an overview of the dishes of the region.",
)


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One answer. Seconds since the request was sent; tokens as the server counts them."""

    ttft_s: float
    total_s: float
    tokens: int

    @property
    def tpot_s(self) -> float:
        """Seconds for each token after the first."""
        return (self.total_s - self.ttft_s) / max(1, self.tokens - 1)


@dataclass(slots=True)
class LoadResult:
    """Result of the requests.

    timings: of answers.
    failures: error messages of failed requests.
    wall_s: seconds in all.
    """

    timings: list[RequestTiming] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return sum(t.tokens for t in self.timings) / self.wall_s if self.wall_s else 0.0


async def generate_load(
    url: str,
    request: dict[str, Any],
    requests: int,
    concurrency: int,
    prompts: Sequence[str] = PROMPTS,
    done: Callable[[], None] = lambda: None,
) -> LoadResult:
    """Send `requests` chats, `concurrency` at a time; `done` is called after each.

    request: the body, without messages. A request that fails is counted and does not stop the others.
    """
    result = LoadResult()
    numbers = iter(range(requests))

    async def send(http: httpx.AsyncClient) -> None:
        for number in numbers:
            message = {"role": "user", "content": prompts[number % len(prompts)]}
            try:
                with explained(url):
                    result.timings.append(await _time(http, {**request, "messages": [message]}))
            except ClientError as error:
                result.failures.append(str(error))
            done()

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    began = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=url, timeout=TIMEOUT, limits=limits, headers=authorization()
    ) as http:
        await asyncio.gather(*(send(http) for _ in range(concurrency)))
    result.wall_s = time.perf_counter() - began
    return result


async def _time(http: httpx.AsyncClient, request: dict[str, Any]) -> RequestTiming:
    body = {**request, "stream": True, "stream_options": {"include_usage": True}}
    began = time.perf_counter()
    first_s = last_s = 0.0
    tokens = 0
    async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.is_error:
            await reply.aread()
            raise refusal(reply)
        async for line in reply.aiter_lines():
            if (chunk := event(line)) is None:
                continue
            if chunk["choices"]:
                last_s = time.perf_counter() - began
                first_s = first_s or last_s
            if usage := chunk.get("usage"):
                tokens = usage["completion_tokens"]
    if not tokens:
        raise ClientError("the answer broke off")
    return RequestTiming(first_s, last_s, tokens)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 50th, 90th and 99th percentile."""
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return float(p50), float(p90), float(p99)
