"""The device that the torch engine's tests compute on: `TANDEM_TEST_DEVICE=cuda pytest tests/engine/torch` on a GPU."""

from __future__ import annotations

import os

import torch

DEVICE = torch.device(os.environ.get("TANDEM_TEST_DEVICE", "cpu"))
