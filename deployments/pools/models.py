"""Models by name: a folder or GGUF file on this machine, one of the embedded family, or a hub's."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from tandem.engine.gguf.folder import folder_of
from tandem.engine.gguf.header import read_header
from tandem.engine.models.hub import HubModel, find, locate
from tandem.engine.models.model_folder import (
    GGUF_FILE,
    UnsupportedModel,
    gguf_parts,
    model_name,
    read_config,
)
from tandem.engine.packages import PACKAGES


class OnDisk(NamedTuple):
    """A model's files on this machine.

    name: short name for people, without the folders above.
    parameters: their number; None where files hold packed numbers, as quantized Hugging Face folders do.
    bytes: of the weights' files.
    embedded: whether it is one of the embedded family, which know nothing but an invented encyclopedia.
    """

    name: str
    parameters: int | None
    bytes: int
    embedded: bool


def model_path(model: str) -> Path:
    """Return a model's folder or GGUF file; fetch a hub's if it is not whole on this machine.

    Raise FileNotFoundError for a missing path, HubError (an OSError) for what a hub does not give, ValueError for an
    unknown name and for a model of no use.
    """
    path = Path(model).expanduser()
    if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
        return path
    if (named := HubModel.parse(model)) is not None:
        return locate(named)
    if len(path.parts) > 1 or path.suffix == ".gguf":
        raise FileNotFoundError(f"there is no folder or GGUF file {model}")
    from tandem.engine import family

    return family.path(model)


def model_folder(model: str) -> Path:
    """Return the folder with a model's tokenizer and configuration, made for a GGUF file. Raise as `model_path`."""
    path = model_path(model)
    return folder_of(path) if path.suffix == ".gguf" else path


def require(model: str, kind: str) -> dict[str, Any]:
    """Return the config.json of a model, fetched if need be, that an engine of that kind can run on this machine.

    Raise PackageMissing (a ValueError) without the engine's package, UnsupportedModel (another) if the engine cannot
    run the model, and as `model_path`.
    """
    if kind in PACKAGES:
        PACKAGES[kind].require()
    config = read_config(model_folder(model), kind)
    if kind == "llamacpp":
        from tandem.engine.llamacpp.model import check  # needs llama.cpp

        check(Path(config[GGUF_FILE]))
    return config


def on_disk(model: str) -> OnDisk | None:
    """Return what this machine has of a model, without fetching anything; None if that is nothing."""
    from tandem.engine import family

    try:
        named = None if Path(model).exists() else HubModel.parse(model)
        path = model_path(model) if named is None else find(named)
        if path is None:
            return None
        if path.suffix == ".gguf":
            files = [path.with_name(part) for part in gguf_parts(path.name)]
            counted = sum(prod(tensor.shape) for file in files for tensor in read_header(file).tensors)
            return OnDisk(path.stem, counted, sum(file.stat().st_size for file in files), False)
        files = sorted(path.glob("*.safetensors"))
        config = json.loads((path / "config.json").read_bytes())
        parameters = None if "quantization_config" in config else sum(map(_parameters, files))
    except (OSError, ValueError, UnsupportedModel):
        return None
    embedded = path.resolve().is_relative_to(family.WEIGHTS.resolve())
    return OnDisk(model_name(path), parameters, sum(file.stat().st_size for file in files), embedded)


def _parameters(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, framework="numpy") as tensors:
        return sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 (no dict)
