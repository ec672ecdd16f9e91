"""Distillation: what it computes is what the engine will, and it learns."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.batch import BatchPiece
from tandem.engine.torch.model import KVPool
from tandem.engine.torch.split.runner import Outer
from tandem.engine.torch.weights import Part
from tandem.training.adapter import texts
from tandem.training.adapter.block import Adapter
from tandem.training.adapter.distil import LOSSES, Distillation, lessons
from tests.engine.torch import tiny


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("kind", tiny.ADAPTED)
@torch.inference_mode()
def test_the_engine_drafts_what_was_trained(kind: str, first: int, tmp_path: Path) -> None:
    """Logits of the file as the engine reads it, to 1e-4, whatever a layer of the model consists of."""
    model = tiny.make(kind, tmp_path)
    adapter = Adapter(model, first)
    adapter.save(tmp_path / "adapter" / "a.safetensors", torch.float32)
    ids = torch.randint(0, tiny.VOCAB, (1, 20), generator=torch.Generator().manual_seed(2))
    shallow = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states[first]
    rotation = model.model.rotary_emb(shallow, torch.arange(20)[None])
    expected = model.lm_head(model.model.norm(adapter(shallow, rotation)))[0]
    ends = weights.load(tmp_path, torch.device("cpu"), torch.float32, Part(0, first))
    outer = Outer(weights.with_adapter(ends, tmp_path / "adapter" / "a.safetensors"))
    pool = KVPool(outer.config, 2, 16, outer.device, outer.dtype)
    logits, _ = outer.shallow(outer.batch([BatchPiece(ids[0].tolist(), 0, range(2), 20)], pool), pool)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_falls_and_the_model_stays(loss: str, tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    run, rng = Distillation(model, 1, loss, 0.02, 80), Random(1)
    documents = texts.of_family(Tokenizer.load(tiny_model), rng)
    supply = lessons(run, texts.batches(documents, 512, rng), rng)
    losses = [run.step(lesson) for lesson in islice(supply, 80)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert all(before[name].equal(weight) for name, weight in model.state_dict().items())
