"""One vLLM engine for all tests: it takes half a minute to start."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from engine import family
from engine.base import Engine
from engine.config import PolicyChoice
from engine.vllm import installed
from engine.vllm.config import VllmConfig


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def engine() -> AsyncIterator[Engine]:
    if installed() is None:
        pytest.skip("vLLM is not installed: make vllm")
    from engine.vllm.engine import load

    config = VllmConfig(kv_blocks=64, max_sessions=8, window=4, scheduling=PolicyChoice(name="buffer_aware"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        made = load(family.path("target"), config, threads=1)
    yield made
    await made.close()
