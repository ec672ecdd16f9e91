"""Choice of the precision in which a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.engine.models import dtype


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("gpu", "large", "cpu", "expected"),
    [
        (True, False, False, {"float32": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}),
        (False, True, True, {"float32": "float32", "bfloat16": "bfloat16", "float16": "float32"}),
        (False, True, False, dict.fromkeys(("float32", "bfloat16", "float16"), "float32")),
        (False, False, True, dict.fromkeys(("float32", "bfloat16", "float16"), "float32")),
    ],
    ids=["gpu", "large", "a cpu without bfloat16", "small"],
)
def test_auto(
    stored: str,
    gpu: bool,
    large: bool,
    cpu: bool,
    expected: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dtype, "cpu_has_bfloat16", lambda: cpu)
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": stored}))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(dtype.CACHED_BYTES + (1 if large else 0))
    assert dtype.choose("auto", tmp_path, gpu) == expected[stored]
    assert dtype.choose("float16", tmp_path, gpu) == "float16"
