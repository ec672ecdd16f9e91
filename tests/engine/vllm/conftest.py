"""One vLLM engine for all tests but those of its own speculation: it takes half a minute to start."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.config import SchedulingChoice
from tandem.engine.vllm.config import VllmConfig


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def engine() -> AsyncIterator[Engine]:
    made = load_engine()
    yield made
    await made.close()


def load_engine(window: int = 4, **changes: Any) -> Engine:
    from tandem.engine.vllm.engine import load

    config = VllmConfig(
        kv_blocks=64,
        max_sessions=8,
        window=window,
        scheduling=SchedulingChoice(name="buffer_aware"),
        **changes,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        return load(family.path("target"), config, threads=1)


NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="package",
    params=[{"speculation": NGRAM}, {"lookup": 4}],
    ids=["vllm", "lookup"],
)
async def speculating_engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Drafts by itself, too, from what has been said before: by vLLM's proposer, or by our own lookup."""
    made = load_engine(**request.param)
    yield made
    await made.close()
