"""A bundle: the outer part of a model as a folder for a device, with a checksum of the model it was cut from.

split.json              what it is, see `Bundle`
model.safetensors       embedding, the first m layers, norm and head; a tied head is the embedding
adapter/model.safetensors   if there is one
config.json, tokenizer.json …   the base model's own
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tandem.engine.base import SplitInfo
from tandem.engine.models.hub import FURTHER_TEMPLATES
from tandem.engine.models.model_folder import UnsupportedModel, model_name, read_config, shape
from tandem.engine.split.base import DESCRIPTION
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.split.checksum_cache import remembered
from tandem.engine.torch.weights import Part

FORMAT = 1
ADAPTER = "adapter/model.safetensors"
_PARTS = "model.safetensors"
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    FURTHER_TEMPLATES,
)
"""Patterns of the base model's files that a bundle has, too."""


_SIZES = (
    "vocab_size",
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "norm_eps",
    "context",
)
"""Fields of the shape that are part of the checksum."""


class BadBundle(UnsupportedModel):
    """The folder is no bundle, or not a whole one."""


class Bundle(msgspec.Struct, frozen=True):
    """Contents of split.json.

    format: version of this layout.
    model: name of the base model.
    split: of which part the bundle is.
    vocabulary: as `Tokenizer.vocabulary`.
    shapes: of all tensors, by file and name.
    acceptance: share of the model's tokens that the adapter would have drafted, as its report says; None: it has none.
    """

    format: int
    model: str
    split: SplitInfo
    vocabulary: str
    shapes: dict[str, dict[str, list[int]]]
    acceptance: float | None = None


def write(model: Path, first: int, out: Path, adapter: Path | None = None) -> Bundle:
    """Cut the outer part off the model in a folder: its `first` first layers, and its ends.

    adapter: a *.safetensors file, beside which there may be its report. Raises UnsupportedModel, or BadBundle if the
        model has too few layers.
    """
    split = describe(model, first)
    part = Part(0, first)
    tensors = {
        name: tensor
        for name, tensor in _tensors(model, shape(model).tied)
        if part.holds(name.removeprefix("model."), split.layers)
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / _PARTS)
    if adapter is not None:
        (out / ADAPTER).parent.mkdir(exist_ok=True)
        shutil.copyfile(adapter, out / ADAPTER)
    for file in [file for pattern in _COPIED for file in model.glob(pattern)]:
        copy = out / file.relative_to(model)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)
    files = [_PARTS] if adapter is None else [_PARTS, ADAPTER]
    bundle = Bundle(
        FORMAT,
        model_name(model.resolve()),
        split,
        Tokenizer.load(model).vocabulary,
        {file: _shapes(out / file) for file in files},
        None if adapter is None else _acceptance(adapter.with_suffix(".json")),
    )
    (out / DESCRIPTION).write_bytes(msgspec.json.format(msgspec.json.encode(bundle)))
    return bundle


class _Group(msgspec.Struct):
    """Group of questions in an adapter's report."""

    tokens: int
    acceptance: float


class _Report(msgspec.Struct):
    figures: dict[str, _Group]


def _acceptance(report: Path) -> float | None:
    """Return the acceptance over all tokens in an adapter's report; None without a report. Raises BadBundle."""
    if not report.exists():
        return None
    try:
        groups = msgspec.json.decode(report.read_bytes(), type=_Report).figures.values()
    except msgspec.MsgspecError as error:
        raise BadBundle(f"{report} is no report of an adapter: {error}") from None
    tokens = sum(group.tokens for group in groups)
    return sum(group.tokens * group.acceptance for group in groups) / tokens if tokens else None


def read(folder: Path) -> Bundle:
    """Read and check a bundle; raises BadBundle if its files do not match split.json."""
    try:
        text = (folder / DESCRIPTION).read_bytes()
        version = msgspec.json.decode(text)["format"]
        if version != FORMAT:
            raise BadBundle(f"{folder} is a bundle of format {version}; this engine reads {FORMAT}")
        bundle = msgspec.json.decode(text, type=Bundle)
    except FileNotFoundError:
        raise BadBundle(f"{folder} is no bundle: it has no {DESCRIPTION}") from None
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise BadBundle(f"{DESCRIPTION} of {folder} is malformed: {error}") from None
    _check_first(bundle.split.first, bundle.split.layers)
    config = shape(folder)
    if (config.layers, config.hidden) != (bundle.split.layers, bundle.split.hidden):
        raise BadBundle(
            f"{folder} is of a model of {bundle.split.layers} layers, {bundle.split.hidden} wide; its config.json "
            f"says {config.layers} and {config.hidden}"
        )
    for file, shapes in bundle.shapes.items():
        if not (folder / file).exists():
            raise BadBundle(f"{folder} lacks {file}")
        found = _shapes(folder / file)
        for name, expected in shapes.items():
            if name not in found:
                raise BadBundle(f"{file} of {folder} lacks {name}")
            if found[name] != expected:
                raise BadBundle(f"{name} in {file} of {folder} has the shape {found[name]}, not {expected}")
    if (vocabulary := Tokenizer.load(folder).vocabulary) != bundle.vocabulary:
        raise BadBundle(f"{folder} has the vocabulary {vocabulary}, its model {bundle.vocabulary}")
    return bundle


def describe(model: Path, first: int) -> SplitInfo:
    """Return the split of a folder's model before layer `first`. Reads all of it for the checksum, unless that was
    done before and the folder is unchanged."""
    config = shape(model)
    _check_first(first, config.layers)
    files = [model / "config.json", *_weights(model)]
    checked = remembered(f"checksum {FORMAT}", files, partial(checksum, model))
    return SplitInfo(checked, first, config.layers, config.hidden)


def checksum(model: Path) -> str:
    """SHA-256 of what the model of a folder computes with: its shape, and all tensors in the order of their names."""
    raw, config = read_config(model), shape(model)
    rotary = {name: raw.get(name) for name in ("rope_theta", "rope_scaling", "rope_parameters")}
    sizes = {name: getattr(config, name) for name in _SIZES}
    digest = hashlib.sha256(json.dumps([sizes, rotary], sort_keys=True).encode())
    for name, tensor in _tensors(model, config.tied):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_first(first: int, layers: int) -> None:
    if not 1 <= first < layers:
        raise BadBundle(f"of {layers} layers, the outer part can have 1 to {layers - 1}, not {first}")


def _tensors(model: Path, tied: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the model's tensors by name, one at a time, without those that are copies or can be computed."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, framework="pt")) for file in _weights(model)]
        holder = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - no dict
        for name in sorted(holder):
            if not (name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")):
                yield name, holder[name].get_tensor(name)


def _weights(model: Path) -> list[Path]:
    return sorted(model.glob("*.safetensors"))


def _shapes(file: Path) -> dict[str, list[int]]:
    with safe_open(file, framework="pt") as f:
        return {name: f.get_slice(name).get_shape() for name in sorted(f.keys())}
