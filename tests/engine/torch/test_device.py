"""Advice of the torch engine on the device that it computes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from tandem.engine.torch import engine as engine_module
from tandem.engine.torch.engine import advise, place_of
from tests.engine.torch import tiny_weights

CPU = torch.device("cpu")


def test_vllm_is_the_engine_for_gpus() -> None:
    assert "kind: vllm" in (advise(torch.device("cuda")) or "")


def test_cores_beside_a_gpu_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve_log: list[logging.LogRecord]
) -> None:
    """Only an engine whose device was not chosen says so, and only where there is a GPU."""
    tiny_weights.write(tmp_path, 1)
    monkeypatch.setattr(engine_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(engine_module, "GPU", tmp_path / "none")
    assert place_of(tmp_path, {})[0] == CPU
    assert not serve_log
    monkeypatch.setattr(engine_module, "GPU", tmp_path)
    place_of(tmp_path, {"device": "cpu"})
    assert not serve_log
    place_of(tmp_path, {})
    (record,) = serve_log
    assert "computes on cores, though this machine has a GPU" in record.getMessage()
