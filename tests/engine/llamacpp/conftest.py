"""Engines over llama.cpp on a model of the embedded family. It has the same vocabulary in float32, so that what they
say is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tandem.engine import family
from tandem.engine.base import Engine
from tandem.engine.config import SchedulingChoice
from tandem.engine.core.engine import CoreEngine
from tandem.engine.llamacpp.config import LlamacppConfig
from tandem.engine.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def target_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.engine.llamacpp.family_gguf import write

    return write("target", tmp_path_factory.mktemp("gguf") / "target.gguf")


def start(file: Path, **settings: Any) -> CoreEngine:
    """settings: of LlamacppConfig."""
    from tandem.engine.llamacpp.engine import load

    return load(
        file, Tokenizer.load(family.path("target")), LlamacppConfig.model_validate(settings), threads=1
    )


@pytest_asyncio.fixture
async def engine(target_gguf: Path) -> AsyncIterator[Engine]:
    """An engine with few places, whose policy lets sessions give way."""
    scheduling = SchedulingChoice(name="buffer_aware")
    made = start(target_gguf, kv_blocks=126, block_size=16, max_sessions=8, scheduling=scheduling)
    yield made
    await made.close()
