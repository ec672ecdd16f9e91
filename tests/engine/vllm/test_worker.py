"""Clients' drafts' distributions in the workers, beside vLLM's rejection sampler."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tandem.engine import vllm
from tandem.engine.base import DraftProbs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def worker() -> Any:
    vllm.set_environment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what vLLM imports
        from vllm.platforms import current_platform

        from tandem.engine.vllm import worker

        if current_platform.is_cpu():
            current_platform.register_triton_kernel_overrides()
        return worker


def test_rows_are_what_each_draft_was_drawn_from(worker: Any) -> None:
    import torch

    drafts = torch.tensor([4, 1, 2, 3, -1, 0], dtype=torch.int32)
    rows = worker.point_masses(drafts, 5)
    assert rows.tolist() == [[float(token == draft) for token in range(5)] for draft in drafts.tolist()]
    q = DraftProbs.of(np.array([[1, 2], [2, 0]], np.int32), np.array([[0.25, 0.75], [1.0, 0.0]], np.float32))
    theirs = torch.full((6, 5), 0.2)
    counts = {"greedy": 1, "none": 0, "drawn": 3, "own": 2}
    worker.state(rows, counts, {"greedy": None, "drawn": q}, theirs)
    assert (
        rows.tolist()
        == [
            [0, 0, 0, 0, 1],
            [0, 0.25, 0.75, 0, 0],
            [0, 0, 1, 0, 0],
            [0, 0, 0, 1, 0],  # looked up, after the client's
            *theirs[:2].tolist(),
        ]
    )


def test_where_rounding_leaves_nothing_the_target_decides(worker: Any) -> None:
    """Not the vocabulary's first token, which is impossible here."""
    import torch
    from vllm.v1.sample import rejection_sampler

    p = torch.tensor([[0.0, 0.5, 0.5]]).repeat(8, 1)
    counts, ends = [1] * 8, torch.arange(1, 9, dtype=torch.int32)
    drafts = torch.ones(8, dtype=torch.int32)
    found = rejection_sampler.sample_recovered_tokens(
        1, counts, ends, drafts, p.clone(), p, SimpleNamespace(generators={}), p.device
    )
    assert set(found.tolist()) <= {1, 2}
