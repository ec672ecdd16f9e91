"""A small model's shape, for tests of single layers."""

from __future__ import annotations

from tandem.engine.models.architectures import ModelConfig

SHAPE = ModelConfig(
    vocab_size=97,
    hidden=64,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=48,
    norm_eps=1e-5,
    context=256,
)
