"""A bundle holds what a device needs and no more, and one that is not whole is refused with what is the matter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.engine import family
from tandem.engine.config import EngineConfig
from tandem.engine.models.model_folder import UnsupportedModel
from tandem.engine.torch import weights
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.bundle import BadBundle
from tandem.engine.torch.split.runner import load_middle, load_outer
from tandem.engine.torch.weights import Part
from tests.engine.torch.split_parts import model_folder, write_adapter


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_folder("llama-untied", tmp_path / "model")


def test_the_outer_part_alone_is_in_it(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(model, tmp_path / "adapter.safetensors", 1.0)
    made = bundle.write(model, 2, tmp_path / "out", adapter)
    assert bundle.read(tmp_path / "out") == made
    assert (made.model, made.split.first, made.split.layers) == ("model", 2, 3)
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    assert {n.split(".")[2] for n in names if ".layers." in n} == {"0", "1"}
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} < names
    loaded = weights.load(tmp_path / "out", torch.device("cpu"), torch.float32, Part(0, 2))
    assert weights.with_adapter(loaded, tmp_path / "out" / bundle.ADAPTER).config.layers == 3


def test_what_is_known_of_the_adapter_goes_along(model: Path, tmp_path: Path) -> None:
    made = bundle.write(family.path("target"), 2, tmp_path / "target", family.adapter())
    report = json.loads(family.adapter().with_suffix(".json").read_text())["figures"].values()
    tokens = sum(group["tokens"] for group in report)
    assert made.acceptance == pytest.approx(sum(g["tokens"] * g["acceptance"] for g in report) / tokens)
    adapter = write_adapter(model, tmp_path / "adapter.safetensors", 1.0)
    assert bundle.write(model, 2, tmp_path / "out", adapter).acceptance is None
    adapter.with_suffix(".json").write_text("{}")
    with pytest.raises(BadBundle, match="no report of an adapter"):
        bundle.write(model, 2, tmp_path / "out", adapter)


def test_tied_embeddings_are_stored_once(tmp_path: Path) -> None:
    bundle.write(family.path("target"), 2, tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_a_part_reads_no_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the folder holds all: a device has no memory for the middle, and a middle needs no ends."""
    read: list[str] = []
    opened = weights.safe_open

    class Watched:
        def __init__(self, *args: Any, **options: Any) -> None:
            self._file = opened(*args, **options)

        def __enter__(self) -> Watched:
            self._inner = self._file.__enter__()
            return self

        def __exit__(self, *error: object) -> None:
            self._file.__exit__(*error)

        def keys(self) -> list[str]:
            return list(self._inner.keys())

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name)
            return self._inner.get_tensor(name)

    monkeypatch.setattr(weights, "safe_open", Watched)
    weights.load(model, torch.device("cpu"), torch.float32, Part(0, 1))
    outer = set(read)
    read.clear()
    weights.load(model, torch.device("cpu"), torch.float32, Part(1, ends=False))
    assert not outer & set(read)
    assert outer | set(read) == set(load_file(model / "model.safetensors"))
    assert {n.split(".")[2] for n in read} == {"1", "2"}


def test_the_checksum_is_of_the_numbers_alone(model: Path, tmp_path: Path) -> None:
    """Neither of the files that they lie in nor of their order there; any change of them changes it."""
    whole = load_file(model / "model.safetensors")
    again = tmp_path / "again"
    shutil.copytree(model, again)
    (again / "model.safetensors").unlink()
    names = sorted(whole, reverse=True)
    save_file({n: whole[n] for n in names[:7]}, again / "b.safetensors")
    save_file({n: whole[n] for n in names[7:]}, again / "a.safetensors")
    assert bundle.checksum(again) == bundle.checksum(model)
    whole["model.layers.2.mlp.up_proj.weight"][0, 0] += 1e-3
    save_file({n: whole[n] for n in names[:7]}, again / "b.safetensors")
    save_file({n: whole[n] for n in names[7:]}, again / "a.safetensors")
    assert bundle.checksum(again) != bundle.checksum(model)
    config = json.loads((model / "config.json").read_text()) | {"rms_norm_eps": 1e-3}
    before = bundle.checksum(model)
    (model / "config.json").write_text(json.dumps(config))
    assert bundle.checksum(model) != before


def _describe(folder: Path, **changes: Any) -> None:
    described = json.loads((folder / "split.json").read_text()) | changes
    (folder / "split.json").write_text(json.dumps(described))


def _split(folder: Path, **changes: Any) -> None:
    _describe(folder, split=json.loads((folder / "split.json").read_text())["split"] | changes)


def _without(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")


def _reshaped(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = tensors[name][:-1].contiguous()
    save_file(tensors, folder / "model.safetensors")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no split.json": (lambda f: (f / "split.json").unlink(), "no bundle"),
    "no JSON": (lambda f: (f / "split.json").write_text("{"), "malformed"),
    "not what is expected": (lambda f: (f / "split.json").write_text('{"format": 1}'), "malformed"),
    "a later format": (lambda f: _describe(f, format=2), "format 2; this engine reads 1"),
    "no layer": (lambda f: _split(f, first=0), "of 3 layers, the outer part can have 1 to 2, not 0"),
    "all layers": (lambda f: _split(f, first=3), "can have 1 to 2, not 3"),
    "another number of layers": (lambda f: _split(f, layers=4), "of a model of 4 layers"),
    "another width": (lambda f: _split(f, hidden=64), "64 wide"),
    "a file that is missing": (lambda f: (f / bundle.ADAPTER).unlink(), "lacks adapter"),
    "a tensor that is missing": (lambda f: _without(f, "lm_head.weight"), "lacks lm_head.weight"),
    "a tensor of another shape": (lambda f: _reshaped(f, "model.norm.weight"), r"shape \[31\], not \[32\]"),
    "another vocabulary": (lambda f: _describe(f, vocabulary="other"), "has the vocabulary"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_bundle_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bundle.write(model, 2, out, write_adapter(model, tmp_path / "adapter.safetensors", 1.0))
    load = lambda: load_outer(out, EngineConfig())  # noqa: E731
    harm, message = BROKEN[name]
    harm(out)
    with pytest.raises(BadBundle, match=message) as refused:
        load()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("first", [-1, 0, 3])
def test_layers_that_are_not_there(first: int, model: Path, tmp_path: Path) -> None:
    for cut in (
        lambda: bundle.write(model, first, tmp_path / "out"),
        lambda: load_middle(model, first, EngineConfig()),
    ):
        with pytest.raises(BadBundle, match="can have 1 to 2"):
            cut()


def test_an_adapter_of_another_shape(model: Path, tmp_path: Path) -> None:
    adapter = write_adapter(model, tmp_path / "adapter.safetensors", 1.0)
    tensors = load_file(adapter)
    save_file(tensors | {"mlp.up_proj.weight": torch.zeros(3)}, adapter)
    bundle.write(model, 1, tmp_path / "out", adapter)
    with pytest.raises(UnsupportedModel, match="does not know: mlp.up_proj.weight"):
        load_outer(tmp_path / "out", EngineConfig())
    save_file(tensors | {"self_attn.o_proj.weight": torch.zeros(32, 31)}, adapter)
    bundle.write(model, 1, tmp_path / "out", adapter)
    with pytest.raises(
        UnsupportedModel, match=r"o_proj.weight is \[32, 31\], where the model has \[32, 32\]"
    ):
        load_outer(tmp_path / "out", EngineConfig())
    del tensors["self_attn.o_proj.weight"]
    save_file(tensors, adapter)
    bundle.write(model, 1, tmp_path / "out", adapter)
    with pytest.raises(UnsupportedModel, match="self_attn.o_proj.weight"):
        load_outer(tmp_path / "out", EngineConfig())


def test_what_is_written_is_json_for_people(model: Path, tmp_path: Path) -> None:
    made = bundle.write(model, 1, tmp_path / "out")
    text = (tmp_path / "out" / "split.json").read_text()
    assert "\n" in text
    assert msgspec.json.decode(text)["split"]["checksum"] == made.split.checksum
