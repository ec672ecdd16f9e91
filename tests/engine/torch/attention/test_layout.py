"""The attention that a model gets."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.torch.attention import flash
from tandem.engine.torch.attention.flash import FlashLayout
from tandem.engine.torch.attention.layout import layout
from tandem.engine.torch.attention.padded import PaddedLayout
from tests.engine.torch.attention.shapes import SHAPE


def test_flash_attention_where_the_kernels_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert isinstance(layout(SHAPE, cpu, torch.float32), PaddedLayout)
    monkeypatch.setattr(flash, "fits", lambda *_: True)
    assert isinstance(layout(SHAPE, cpu, torch.float32), FlashLayout)
