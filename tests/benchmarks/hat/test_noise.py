"""Noise has a price, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.benchmarks.hat.noise import noisy, prices
from tests.engine.torch.split_parts import RANDOM, model_folder, write_adapter

PROMPTS = [[20, 21, 22], [9, 10], [5, 6, 7, 8, 9, 10, 11, 12, 13]]
LONGEST = 40


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_noise_is_a_share_of_each_state(generator: torch.Generator) -> None:
    hidden = torch.randn(200, 64, generator=generator) * torch.logspace(-2, 2, 200)[:, None]
    added = noisy(hidden, 0.5, generator) - hidden
    share = added.square().mean(-1).sqrt() / hidden.square().mean(-1).sqrt()
    assert share.median() == pytest.approx(0.5, rel=0.05)


async def test_it_costs_exactness_the_more_of_it_there_is(tmp_path: Path) -> None:
    model = model_folder("llama-untied", tmp_path / "model")
    adapter = write_adapter(model, tmp_path / "adapter.safetensors", 0.3 * RANDOM)
    found = await prices(model, 2, adapter, PROMPTS, LONGEST, [0.0, 0.5, 20.0])
    nothing, some, all_of_it = found.values()
    assert nothing.exact == nothing.begun == 1.0
    assert 0 < nothing.acceptance < 1
    assert 1.0 > some.exact > all_of_it.exact
    assert some.begun <= some.exact
    assert all_of_it.acceptance < nothing.acceptance
    assert await prices(model, 2, adapter, PROMPTS, LONGEST, [0.5]) == {0.5: some}
