"""The forward pass against transformers, over ragged batches with scattered blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.engine.torch import weights
from tandem.engine.torch.attention import padded
from tandem.engine.torch.attention.batch import BatchPiece
from tandem.engine.torch.model import KVPool, Model
from tests.engine.torch import tiny
from tests.engine.torch.place import DEVICE

BLOCK = 4


def _load(folder: Path) -> tuple[Model, KVPool]:
    model = Model(weights.load(folder, DEVICE, torch.float32))
    return model, KVPool(model.config, 64, BLOCK, model.device, model.dtype)


@pytest.mark.parametrize("gathered", [None, 1], ids=["together", "one by one"])
@pytest.mark.parametrize("kind", tiny.MODELS)
@torch.inference_mode()
def test_ragged_batch_equals_transformers(
    kind: str, gathered: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three sequences go through prefill chunks, single decodes and windows in mixed steps; every row's
    logits equal those of a plain transformers forward pass over the whole sequence to 1e-4."""
    if gathered is not None:
        monkeypatch.setattr(padded, "GATHERED_BYTES", gathered)
    reference = tiny.make(kind, tmp_path)
    model, pool = _load(tmp_path)
    generator = torch.Generator().manual_seed(3)
    tokens = [torch.randint(0, tiny.VOCAB, (n,), generator=generator).tolist() for n in (37, 21, 50)]
    expected = [reference(torch.tensor([t])).logits[0] for t in tokens]
    scattered = torch.randperm(64, generator=generator).tolist()
    tables = [scattered[0:10], scattered[10:16], scattered[16:29]]
    done = [0, 0, 0]
    for counts in ((20, 5, 1), (1, 1, 30), (9, 0, 1), (1, 6, 3), (6, 9, 15)):
        chosen = [i for i in range(3) if counts[i]]
        pieces = [
            BatchPiece(
                tokens[i][done[i] : done[i] + counts[i]],
                done[i],
                tables[i][: -(-(done[i] + counts[i]) // BLOCK)],
                counts[i],
            )
            for i in chosen
        ]
        logits = model.forward(model.batch(pieces, pool), pool)
        row = 0
        for i in chosen:
            rows = logits[row : row + counts[i]].cpu()
            own = expected[i][done[i] : done[i] + counts[i]]
            torch.testing.assert_close(rows, own, atol=1e-4, rtol=1e-4)
            assert torch.equal(rows.argmax(-1), own.argmax(-1))
            row += counts[i]
            done[i] += counts[i]
    assert done == [37, 21, 50]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_sixteen_bits_are_as_good_as_transformers_own(dtype: torch.dtype, tmp_path: Path) -> None:
    """Logits differ from those in float32 by no more than twice as much as transformers' in this precision do."""
    reference = tiny.make("llama", tmp_path)
    model = Model(weights.load(tmp_path, DEVICE, dtype))
    pool = KVPool(model.config, 64, BLOCK, model.device, model.dtype)
    tokens = torch.randint(0, tiny.VOCAB, (40,), generator=torch.Generator().manual_seed(5))
    exact = reference(tokens[None]).logits[0]
    other = reference.to(dtype)(tokens[None]).logits[0].float()
    found = model.forward(model.batch([BatchPiece(tokens.tolist(), 0, range(10), 40)], pool), pool).cpu()
    assert found.dtype == torch.float32
    assert (found - exact).square().mean() <= 4 * (other - exact).square().mean()


@torch.inference_mode()
def test_logits_only_where_wanted(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    model, pool = _load(tmp_path)
    pieces = [
        BatchPiece([5, 6, 7], 0, [0], 1),
        BatchPiece([8, 9], 0, [1], 0),
        BatchPiece([3, 4, 5, 6], 0, [2], 2),
    ]
    some = model.forward(model.batch(pieces, pool), pool)
    every = model.forward(
        model.batch([BatchPiece(p.ids, 0, p.blocks, len(p.ids)) for p in pieces], pool), pool
    )
    torch.testing.assert_close(some, every[[2, 7, 8]])
