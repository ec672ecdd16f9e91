"""A GGUF file as a folder: the same weights, shape and vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tandem.engine import family
from tandem.engine.gguf.convert import convert
from tandem.engine.models.model_folder import UnsupportedModel, shape
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.gguf.files import byte_level
from tests.engine.gguf.files import write as write_header
from tests.engine.llamacpp.family_gguf import write


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))


def test_weights_shape_and_vocabulary_are_the_model_s(tmp_path: Path) -> None:
    original = family.path("tiny")
    folder = tmp_path / "new" / "folder"
    convert(write("tiny", tmp_path / "tiny.gguf"), folder, "float32")
    given, made = (load_file(f / "model.safetensors") for f in (original, folder))
    assert made.keys() == given.keys()
    for name, tensor in given.items():
        assert torch.equal(made[name], tensor.float()), name
    found, known = shape(folder), shape(original)
    assert found.norm_eps == pytest.approx(known.norm_eps)  # single precision in the file
    assert replace(found, norm_eps=known.norm_eps) == known
    text = "Tell me about the town of Marworth."
    assert Tokenizer.load(folder).encode(text) == Tokenizer.load(original).encode(text)
    with pytest.raises(FileExistsError, match="is there already"):
        convert(tmp_path / "tiny.gguf", folder)


def test_what_cannot_be_converted_leaves_nothing(tmp_path: Path) -> None:
    file = write_header(tmp_path / "model.gguf", byte_level() | {"general.architecture": "unheard-of"})
    with pytest.raises(UnsupportedModel, match="unheard-of"):
        convert(file, tmp_path / "folder")
    assert {path.name for path in tmp_path.iterdir()} == {"model.gguf", "cache"}
