"""Checks of a local Hugging Face folder before anything is loaded. Nothing here needs torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tandem.engine.models.architectures import ModelConfig, read_shape
from tandem.engine.models.architectures import UnsupportedModel as UnsupportedModel

KINDS = ("torch", "llamacpp", "vllm")
"""Kinds of engine that run models of files."""

GGUF_FILE = "gguf_file"
"""Key in config.json of a folder that was made from a GGUF file: that file's path."""
GGUF_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
"""Name of one of several GGUF files that are one model: llama.cpp's `llama_split_path`."""


def read_config(folder: Path, kind: str = "torch") -> dict[str, Any]:
    """Return the folder's config.json. Raise UnsupportedModel if files are missing, or an engine of that kind cannot
    run the model."""
    try:
        raw: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise UnsupportedModel(f"{folder} is no model folder: it has no config.json") from None
    except json.JSONDecodeError as error:
        raise UnsupportedModel(f"config.json of {folder} is no JSON: {error}") from None
    if GGUF_FILE in raw:
        if kind != "llamacpp":
            raise UnsupportedModel(
                f"{raw[GGUF_FILE]} is a GGUF file, which only kind llamacpp runs; engine kind {kind} needs the model's "
                f"Hugging Face folder, which `tandem models convert {raw[GGUF_FILE]} DIR` makes"
            )
        return raw
    if kind == "llamacpp":
        raise UnsupportedModel(f"engine kind llamacpp runs GGUF files, and {folder} is none")
    if kind == "torch":
        read_shape(folder, raw)
    if not any(folder.glob("*.safetensors")):
        raise UnsupportedModel(f"{folder} holds no *.safetensors file")
    return raw


def shape(folder: Path) -> ModelConfig:
    """Return the shape of a folder's model for the torch engine. Raise UnsupportedModel, with the reason, if it cannot
    run it."""
    return read_shape(folder, read_config(folder))


def engine_kinds(folder: Path) -> tuple[str, ...]:
    """Return the kinds of engine that run the model of a folder. Raise UnsupportedModel if none does."""
    able, why = [], None
    for kind in KINDS:
        try:
            read_config(folder, kind)
            able.append(kind)
        except UnsupportedModel as error:
            why = error
    if not able and why is not None:
        raise why
    return tuple(able)


def model_name(folder: Path) -> str:
    """Return the name of the model in a folder: the folder's; in the cache of a hub, whose folders are named by commit,
    the repository's."""
    snapshots = folder.parent
    return snapshots.parent.name.rpartition("--")[2] if snapshots.name == "snapshots" else folder.name


def gguf_parts(file: str) -> list[str]:
    """Return the files of the model that begins with this one; only this one if its name is no first part's."""
    match = GGUF_PART.fullmatch(file)
    if match is None or int(match[2]) != 1:
        return [file]
    return [f"{match[1]}-{number:05}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]
