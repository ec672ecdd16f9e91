"""The forward pass of a real quantised model, where one lies ready."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.engine.gguf.test_real_models import MODELS

PROMPT, WINDOWS = 250, 30
"""Tokens read at once, and after them: from 256 on, llama.cpp shares the attention of single steps out to threads."""


@pytest.mark.nightly
@pytest.mark.llamacpp
def test_small_steps_of_a_reproducible_engine_round_alike() -> None:
    from tandem.engine.llamacpp.model import BatchRow, LlamaModel

    if not (file := MODELS / "qwen2.5-coder-0.5b.gguf").exists():
        pytest.skip(f"{file} is not there")
    model = LlamaModel(file, cells=1024, rows=4, batch_tokens=256, threads=2, reproducible=True)
    ids = np.random.default_rng(0).integers(100, 50_000, PROMPT + WINDOWS).tolist()

    def logits(steps: Iterable[int], others: int = 0) -> np.ndarray:
        """Return the logits of the last tokens, read in steps of these sizes, with so many of another row in each."""
        found, at = [], 0
        for n, size in enumerate(steps):
            batch = [BatchRow(0, at, ids[at : at + size], size)]
            batch += [BatchRow(1, n * others, ids[:others], 1)] if others else []
            found.append(model.forward(batch)[:size].copy())
            at += size
        model.remove(0, 0, -1)
        model.remove(1, 0, -1)
        return np.concatenate(found)[-WINDOWS:]

    alone = logits([PROMPT] + [1] * WINDOWS)
    for steps in ([PROMPT] + [6] * 5, [100, 150, 1, 4, *[5] * 5], [PROMPT, *[7] * 4, 2]):
        assert np.array_equal(logits(steps), alone), steps
    assert np.array_equal(logits([PROMPT] + [1] * WINDOWS, others=5), alone)
    for threads in (1, 2):
        model._threads.choose = lambda positions, threads=threads: threads  # type: ignore[method-assign]
        assert np.array_equal(logits([PROMPT] + [1] * WINDOWS), alone), threads
