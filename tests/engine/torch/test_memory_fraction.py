"""KV cache sized by a share of the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tandem.deployments.pools.engines import TorchSettings, context_of
from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.torch import engine as engine_module
from tandem.engine.torch.engine import load

CONTEXT_BLOCKS = 1024 // 16


@pytest.fixture
def folder() -> Path:
    return family.path("tiny")


@pytest.fixture
def block_bytes(folder: Path) -> int:
    weights = engine_module.weights.load(folder, *engine_module.place_of(folder, {"device": "cpu"}))
    return 16 * weights.kv_token_bytes


@pytest.mark.parametrize(
    ("free_blocks", "expected"),
    [(200.5, 100), (2 * CONTEXT_BLOCKS, CONTEXT_BLOCKS), (10_000, 4 * CONTEXT_BLOCKS)],
    ids=["half", "just a context", "more than all sessions need"],
)
async def test_blocks_are_a_share_of_the_free_memory(
    free_blocks: float, expected: int, folder: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "free_bytes", lambda: free_blocks * block_bytes)
    said: dict[str, object] = {}
    config = EngineConfig(max_sessions=4)
    made = load(folder, config, threads=1, device="cpu", memory_fraction=0.5, report=said.update)
    try:
        assert said["kv_blocks"] == expected == (await made.stats()).blocks_total
        session = await made.open([5] * 900, Sampling(max_tokens=2, ignore_eos=True))
        assert len([t async for chunk in session.generate() for t in chunk.ids]) == 2
    finally:
        await made.close()


def test_too_little_is_refused_with_the_arithmetic(
    folder: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "free_bytes", lambda: 2.0 * (CONTEXT_BLOCKS - 1) * block_bytes)
    with pytest.raises(ValueError, match=r"memory_fraction: 0\.50 of .* GB .* 1024 tokens of .* kv_blocks"):
        load(folder, EngineConfig(), threads=1, device="cpu", memory_fraction=0.5)


def test_one_of_both_sizes_the_cache() -> None:
    with pytest.raises(ValidationError, match="give one of them"):
        TorchSettings(memory_fraction=0.5, kv_blocks=100)
    assert context_of(TorchSettings(kv_blocks=10)) == 160
    assert context_of(TorchSettings(memory_fraction=0.5)) == 1024
