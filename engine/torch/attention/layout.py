"""The choice of an attention for a model's shape, device and precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.engine.models.architectures import ModelConfig
from tandem.engine.torch.attention import flash
from tandem.engine.torch.attention.batch import Attention, BatchPiece
from tandem.engine.torch.attention.padded import PaddedLayout

Layout = Callable[[Sequence[BatchPiece], int], Attention]
"""Lays out the attention of a step's pieces over blocks; the second argument is their size in tokens."""


def layout(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Layout:
    """Return torch's flash attention where it computes this model, otherwise padded attention.

    On a GPU padded attention decodes as fast, but one prompt's prefill holds the other sessions for far longer.
    """
    if flash.fits(config, device, dtype):
        return flash.FlashLayout(config, device)
    return PaddedLayout(config, device, dtype)
