"""A low-rank change: nothing at first, the same merged, saved and applied, and refused by another model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem.training.family.models import Shape, new_model
from tandem.training.sketch.low_rank import LowRank, apply, attach, merged, save

TINY = Shape(layers=2, width=32, heads=2, kv_heads=1, ffn=48)
IDS = torch.arange(12)[None]


def logits(model: torch.nn.Module) -> Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def changed(rank: int = 3) -> tuple[Tensor, torch.nn.Module]:
    """The logits of a model, and the model with a change that is not nothing."""
    torch.manual_seed(1)
    model = new_model(TINY, 64)
    before = logits(model)
    learnt = attach(model, rank)
    assert torch.equal(logits(model), before)
    with torch.no_grad():
        for parameter in learnt:
            parameter.copy_(torch.randn_like(parameter).bfloat16())
    return before, model


def test_merged_computes_the_same_and_leaves_the_model_as_it_is() -> None:
    before, model = changed()
    after = logits(model)
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(logits(merged(model)), after, atol=1e-4, rtol=1e-4)
    assert torch.equal(logits(model), after)
    assert not any(isinstance(module, LowRank) for module in merged(model).modules())


def test_saved_and_applied_to_the_unchanged_model_it_computes_the_same(tmp_path: Path) -> None:
    before, model = changed()
    save(model, tmp_path / "new" / "delta.safetensors")
    torch.manual_seed(1)
    fresh = new_model(TINY, 64)
    assert torch.equal(logits(fresh), before)
    apply(fresh, tmp_path / "new" / "delta.safetensors")
    torch.testing.assert_close(logits(fresh), logits(model), atol=1e-4, rtol=1e-4)


def test_only_the_change_learns() -> None:
    _, model = changed()
    model(input_ids=IDS, labels=IDS).loss.backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == name.endswith((".a", ".b")), name


@pytest.mark.parametrize(
    "shape", [Shape(3, 32, 2, 1, 48), Shape(2, 64, 2, 1, 48)], ids=["more layers", "wider"]
)
def test_another_model_refuses_it(shape: Shape, tmp_path: Path) -> None:
    save(changed()[1], tmp_path / "delta.safetensors")
    with pytest.raises(ValueError, match="is the change of a model with"):
        apply(new_model(shape, 64), tmp_path / "delta.safetensors")
