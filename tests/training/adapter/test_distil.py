"""Distillation: what it computes is what the engine will, and it learns."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM

from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch import weights
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool
from tandem.engine.torch.split.runner import Outer
from tandem.engine.torch.weights import Part
from tandem.training.adapter import texts
from tandem.training.adapter.block import Adapter
from tandem.training.adapter.distil import (
    LOSSES,
    Distillation,
    compared,
    kept_bytes,
    lessons,
)
from tests.effort import slow_after
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "few"), slow_after(1, [(loss, few) for loss in LOSSES for few in (True, False)])
)
def test_the_loss_falls_and_the_model_stays(loss: str, few: bool, tiny_model: Path) -> None:
    """few: the loss compares a part of the vocabulary."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    run, rng = Distillation(model, 1, loss, 0.02, 80, torch.arange(100, 200) if few else None), Random(1)
    documents = texts.of_family(Tokenizer.load(tiny_model), rng)
    supply = lessons(run, texts.batches(documents, 512, rng), rng)
    losses = [run.step(lesson) for lesson in islice(supply, 80)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    assert all(before[name].equal(weight) for name, weight in model.state_dict().items())


def test_what_a_step_compares_has_the_texts_tokens_and_others(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    tokens = torch.arange(5, 25)
    run = Distillation(model, 1, "kl", 0.02, 1, tokens)
    first, second = run._head(), run._head()
    for head in (first, second):
        assert len(tokens) < len(head) <= 2 * len(tokens)
        assert all((head == row).all(-1).any() for row in model.lm_head.weight[tokens])
    assert first.shape != second.shape or not first.equal(second)


def test_a_loss_compares_the_tokens_of_answers_where_these_are_few() -> None:
    documents = [texts.Document([1, 2], [7, 5]), texts.Document([3], [5, 9])]
    few = compared(documents, 13)
    assert few is not None
    assert few.tolist() == [5, 7, 9]
    assert compared(documents, 12) is None


def test_a_corpus_that_memory_holds_is_computed_once() -> None:
    """All its batches take turns, and a document is in one of them."""
    documents = [texts.Document([1], [i] * (1 + i % 7)) for i in range(2, 40)]
    batches = texts.grouped(documents, 24, Random(1))
    counts = [batch.ids[batch.counted.roll(1, 1)].unique().tolist() for batch in batches]
    assert sorted(token for tokens in counts for token in tokens) == list(range(2, 40))
    assert kept_bytes(batches, 10) == sum(80 * batch.ids.numel() for batch in batches)

    class Counting:
        lessons = 0

        def lesson(self, batch: texts.Batch) -> int:
            self.lessons += 1
            return self.lessons

    run, once = Counting(), len(batches)
    supply = lessons(run, iter(batches), Random(1), once, 4)  # type: ignore[arg-type]
    passes: list[list[object]] = [list(islice(supply, once)) for _ in range(4)]
    assert run.lessons == once
    assert all(sorted(each) == sorted(passes[0]) for each in passes)  # type: ignore[type-var]
    assert passes[1] != passes[2]
