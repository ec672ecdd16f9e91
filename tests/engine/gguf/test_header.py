"""The metadata of GGUF files, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.engine.gguf.header import read_header
from tandem.engine.models.model_folder import UnsupportedModel
from tests.engine.gguf.files import LLAMA, TENSORS, byte_level, write


def test_metadata_and_tensors(tmp_path: Path) -> None:
    metadata = byte_level(padding=3) | {"llama.rope.none": False, "general.languages": ["en", "fr"]}
    header = read_header(write(tmp_path / "a.gguf", metadata))
    assert header.metadata == metadata
    assert (header.architecture, header.quantization) == ("llama", "Q4_K_M")
    assert {tensor.name: tensor.shape for tensor in header.tensors} == TENSORS
    first, second = header.tensors
    assert (first.size, second.size) == (2048, 512)
    assert second.offset == first.offset + 2048
    assert second.offset + 512 == (tmp_path / "a.gguf").stat().st_size


@pytest.mark.parametrize("kept", [5, 30, 200, 3000, -512, -1])
def test_a_file_that_is_cut_off(tmp_path: Path, kept: int) -> None:
    file = write(tmp_path / "a.gguf", byte_level())
    read_header(file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UnsupportedModel, match="cut off.*fetch it again"):
        read_header(file)


def test_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\3\4 and so on")
    with pytest.raises(UnsupportedModel, match="is no GGUF file"):
        read_header(tmp_path / "a.gguf")
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "b.gguf")


def test_other_versions_and_files_without_a_model(tmp_path: Path) -> None:
    for version in (1, 4):
        with pytest.raises(UnsupportedModel, match=f"version {version}; versions 2 and 3"):
            read_header(write(tmp_path / "a.gguf", LLAMA, version=version))
    with pytest.raises(UnsupportedModel, match="architecture"):
        read_header(write(tmp_path / "a.gguf", {"general.type": "model"}))
    with pytest.raises(UnsupportedModel, match="no weights"):
        read_header(write(tmp_path / "a.gguf", LLAMA, tensors={}))
