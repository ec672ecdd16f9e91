"""Measurement of an engine's speed, which leaves no session behind."""

from __future__ import annotations

from pathlib import Path

from tandem.app.device.speed import measure, measure_ends
from tandem.engine.null.engine import NullEngine
from tests.engine.torch.split_parts import RANDOM, Parts, model_folder


async def test_an_engine_takes_so_long() -> None:
    slow, fast = NullEngine(tokens_per_s=200.0), NullEngine(tokens_per_s=2000.0)
    found = [await measure(engine) for engine in (slow, fast)]
    assert found[0].decode_token_s > 3 * found[1].decode_token_s > 0
    assert (await slow.stats()).sessions == 0


async def test_two_ends_take_so_long(tmp_path: Path) -> None:
    """Measure ends with and without an adapter; a prompt's tokens, computed together, take less each."""
    model = model_folder("llama-untied", tmp_path / "model")
    for adapter in (None, RANDOM):
        parts = Parts.make(model, 2, tmp_path / str(adapter), adapter)
        found = await measure_ends(parts.outer)
        assert 0 < found.prefill_token_s < found.token_s
        assert found.head_s > 0
        assert (await parts.outer.stats()).sessions == 0
        await parts.close()
