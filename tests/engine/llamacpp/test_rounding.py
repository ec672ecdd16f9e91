"""The forward pass of a real quantised model, where one lies ready."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.gguf.test_real_models import MODELS

IDS = [*range(100, 130)]


@pytest.mark.llamacpp
def test_without_repacking_small_steps_round_alike() -> None:
    from tandem.engine.llamacpp.model import BatchRow, LlamaModel

    if not (file := MODELS / "qwen2.5-coder-0.5b.gguf").exists():
        pytest.skip(f"{file} is not there")
    model = LlamaModel(file, cells=128, rows=4, batch_tokens=64, threads=2, repack=False)
    alone = [model.forward([BatchRow(0, at, [token], 1)]).copy() for at, token in enumerate(IDS)]
    for width in (2, 5, 6):
        windows = [
            model.forward([BatchRow(1, at, IDS[at : at + width], width)]).copy()
            for at in range(0, len(IDS), width)
        ]
        assert np.array_equal(np.concatenate(windows), np.concatenate(alone))
        model.remove(1, 0, -1)
