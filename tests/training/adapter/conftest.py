"""A tiny random model with a corpus."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tandem.training.adapter.texts import HELD
from tandem.training.family.models import Shape, new_model, save
from tandem.training.family.prompts import heldout
from tandem.training.family.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    tokenizer = train_tokenizer(512, 500)
    model = new_model(Shape(layers=4, width=32, heads=2, kv_heads=1, ffn=48), len(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)  # so that its logits differ clearly
    folder = tmp_path_factory.mktemp("adapter") / "tiny"
    save(model, tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty-two questions with answers; three are held out."""
    file = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [
        {"question": item.question, "answer": item.answer} for item in heldout(2 * HELD + 2, ["fact"], 3)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file
