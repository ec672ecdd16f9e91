"""Models whose matrices are padded to different sizes: one vocabulary, in which padding is never said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tests.engine_contract import session

PADDING = 128


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    """Return a copy of the family's small model, of whose padding one row always has the highest logit."""
    folder = shutil.copytree(family.path("small"), tmp_path / "padded")
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    rows = tensors["model.embed_tokens.weight"]
    row = 100 * rows.abs().max() * torch.ones(1, rows.shape[1], dtype=rows.dtype)
    tensors["model.embed_tokens.weight"] = torch.cat([rows, row, -row, row.repeat(PADDING - 2, 1)])
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": len(rows) + PADDING}))
    return folder


async def test_padding_is_neither_drafted_nor_said(padded: Path) -> None:
    prompt = Tokenizer.load(padded).render_chat([{"role": "user", "content": "Who founded Marworth?"}])
    plain, drafter, target = (
        load(folder, EngineConfig()) for folder in (family.path("small"), padded, family.path("target"))
    )
    assert drafter.info.vocabulary == target.info.vocabulary
    assert drafter.info.vocab_size == target.info.vocab_size
    for sampling in (Sampling(max_tokens=16), Sampling(max_tokens=16, temperature=1.0, seed=3)):
        async with session(plain, prompt, sampling) as s, session(drafter, prompt, sampling) as padded_s:
            expected, drafted = await s.draft(0, [], 6), await padded_s.draft(0, [], 6)
            assert drafted.ids == expected.ids
        async with session(target, prompt, sampling) as s:
            verdict = await s.verify(drafted.ids, drafted.probs)
            assert len(verdict.ids) == verdict.accepted + 1
    for engine in (plain, drafter, target):
        await engine.close()
