"""Rotary embeddings equal transformers' own, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tandem.engine.models.architectures import ROPE_KINDS
from tandem.engine.torch.layers.rope import rotation

CONTEXT = 512
KINDS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "yarn by hand": {
        "factor": 4.0,
        "beta_fast": 16,
        "beta_slow": 2,
        "attention_factor": 1.3,
        "truncate": False,
    },
    "yarn of DeepSeek": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9},
    "longrope": {
        "long_factor": [1.0 + i / 4 for i in range(32)],
        "short_factor": [1.0 + i / 9 for i in range(32)],
    },
}


@pytest.mark.parametrize("longest", [100, CONTEXT], ids=["short", "long"])
@pytest.mark.parametrize("name", KINDS)
def test_equals_transformers(name: str, longest: int) -> None:
    kind = name.split()[0]
    settings = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 128,
        **KINDS[name],
    }
    shape = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
    if kind == "longrope":
        config = Phi3Config(**shape, original_max_position_embeddings=128, rope_parameters=dict(settings))
    else:
        config = LlamaConfig(**shape, rope_parameters=dict(settings))
    frequency, magnitude = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=longest)
    angle = torch.arange(longest, dtype=torch.float32)[:, None] * frequency
    expected = torch.polar(torch.full_like(angle, magnitude), angle)
    assert kind in ROPE_KINDS
    torch.testing.assert_close(rotation(settings, 64, CONTEXT, longest), expected, atol=2e-4, rtol=0)


def test_what_is_not_turned_stays() -> None:
    settings = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    turns = rotation(settings, 16, 32, 32)
    assert turns.shape == (32, 8)
    assert torch.equal(turns[:, 4:], torch.ones(32, 4, dtype=torch.complex64))
    torch.testing.assert_close(turns[:, :4], rotation(settings | {"partial_rotary_factor": 1.0}, 8, 32, 32))
