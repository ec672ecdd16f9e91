"""Models by name: a folder or GGUF file on this machine, one of the embedded family, or a hub's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.engine.gguf.folder import folder_of
from tandem.engine.models.hub import HubModel, locate
from tandem.engine.models.model_folder import GGUF_FILE, read_config
from tandem.engine.packages import PACKAGES


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
