"""Models on this machine's disk: the embedded family, what was fetched from hubs, and GGUF files that were used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.engine import cache, family
from tandem.engine.gguf.folder import folder_of
from tandem.engine.models.hub import HubModel, find
from tandem.engine.models.model_folder import (
    GGUF_FILE,
    UnsupportedModel,
    engine_kinds,
    gguf_parts,
    read_config,
)
from tandem.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DiskModel:
    """A model, as `model:` of an engine names it.

    name: family model, hub's name, or path.
    path: its folder, or GGUF file.
    size: bytes on the disk.
    architecture: Hugging Face's class, or llama.cpp's name.
    weights: dtype or quantization.
    context: most tokens of prompt and output; 0 if the configuration does not say.
    vocabulary: id; equal for models that can draft for each other.
    engines: kinds of engine that run it.
    layers: number of layers.
    problem: reason why no engine runs it; None if one does.
    """

    name: str
    path: Path
    size: int
    architecture: str = "?"
    weights: str = "?"
    context: int = 0
    vocabulary: str | None = None
    engines: tuple[str, ...] = ()
    layers: int = 0
    problem: str | None = None

    def roles(self, others: Sequence[DiskModel]) -> list[str]:
        """Return what it can be beside the others: a drafter needs a larger target of its vocabulary."""
        if not self.engines:
            return []
        targets = [
            other for other in others if other.vocabulary == self.vocabulary and other.size > self.size
        ]
        can = {"target": True, "drafter": bool(targets), "device": True}
        can["split"] = "torch" in self.engines and self.layers > 1
        return [role for role, possible in can.items() if possible]


def on_disk() -> list[DiskModel]:
    """Return all models; takes seconds for each that is new."""
    return [_describe(name, path) for name, path in _places()]


def _places() -> Iterator[tuple[str, Path]]:
    """Yield names and places of models."""
    for name in family.NAMES:
        if (family.WEIGHTS / name / "config.json").exists():
            yield name, family.path(name)
    hub_files = set()
    for name, path in _of_hubs():
        hub_files.add(path.resolve())
        yield name, path
    used = {
        Path(json.loads(config.read_bytes())[GGUF_FILE])
        for config in (cache.folder() / "gguf").glob("*/config.json")
    }
    for file in sorted(used):
        if file.is_file() and file.resolve() not in hub_files:
            yield str(file), file


def _of_hubs() -> Iterator[tuple[str, Path]]:
    """Yield what is whole in the hub's cache."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda repository: repository.repo_id):
        if repository.repo_type != "model":
            continue
        for revision in repository.revisions:
            at = None if "main" in revision.refs else next(iter(sorted(revision.refs)), revision.commit_hash)
            files = {file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files}
            later_parts = {part for file in files for part in gguf_parts(file)[1:]}
            gguf = [file for file in sorted(files - later_parts) if file.endswith(".gguf")]
            named = [HubModel(repository.repo_id, file, revision=at) for file in gguf]
            for model in [HubModel(repository.repo_id, revision=at), *named]:
                if (path := find(model)) is not None:
                    yield str(model), path


def _describe(name: str, path: Path) -> DiskModel:
    if path.suffix == ".gguf":
        files = [path.with_name(part) for part in gguf_parts(path.name)]
    else:
        files = [file for file in path.iterdir() if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    try:
        return (
            _describe_gguf(name, path, size) if path.suffix == ".gguf" else _describe_folder(name, path, size)
        )
    except (UnsupportedModel, OSError) as error:
        return DiskModel(name, path, size, problem=str(error))


def _describe_gguf(name: str, file: Path, size: int) -> DiskModel:
    folder = folder_of(file)
    raw = json.loads((folder / "config.json").read_bytes())
    return DiskModel(
        name,
        file,
        size,
        raw["model_type"],
        raw["quantization"],
        _context(raw),
        raw["vocabulary"],
        engine_kinds(folder),
    )


def _describe_folder(name: str, folder: Path, size: int) -> DiskModel:
    from tandem.engine.torch.split.checksum_cache import remembered

    engines = engine_kinds(folder)
    raw = read_config(folder, engines[0])
    architecture = (raw.get("architectures") or ["?"])[0]
    quantized = raw.get("quantization_config", {}).get("quant_method")
    vocabulary = remembered(
        "vocabulary", [folder / "tokenizer.json"], lambda: Tokenizer.load(folder).vocabulary
    )
    return DiskModel(
        name,
        folder,
        size,
        architecture,
        quantized or raw.get("dtype") or raw.get("torch_dtype") or "?",
        _context(raw),
        vocabulary,
        engines,
        int(raw.get("num_hidden_layers", 0)),
    )


def _context(raw: dict[str, Any]) -> int:
    return int(raw.get("max_position_embeddings", 0))
