"""Requests of tests to a device's program and to the cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from openai import AsyncOpenAI

MEMORY = {"kv_blocks": 512, "block_size": 16, "token_budget": 512}
QUESTIONS = ("Tell me about the town of Marworth.", "Which river is the longest?")


async def listed(http: httpx.AsyncClient, name: str) -> bool:
    return any(d["name"] == name for d in (await http.get("/v1/devices")).json()["data"])


async def said(
    address: str,
    question: str,
    max_tokens: int = 32,
    in_the_middle: Callable[[], object] = lambda: None,
    model: str = "tandem",
    **tandem: Any,
) -> tuple[str, dict[str, Any]]:
    """(the answer, what it cost), as OpenAI's client gets them. in_the_middle: called after the third piece of it."""
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_body={"tandem": tandem},
        )
        text, stats, pieces = "", {}, 0
        async for chunk in stream:
            pieces += 1
            if pieces == 3:
                in_the_middle()
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            stats = (chunk.model_extra or {}).get("tandem", {}).get("stats", stats)
    return text, stats
