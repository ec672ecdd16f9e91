"""Facts of models and of this machine before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tandem.deployments.pools.models import model_folder, require
from tandem.engine.memory import free_bytes
from tandem.engine.models import dtype
from tandem.engine.models.model_folder import (
    GGUF_FILE,
    UnsupportedModel,
    engine_kinds,
    gguf_parts,
    read_config,
)
from tandem.engine.packages import VLLM


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources to run on. free_bytes: of memory."""

    cores: int
    free_bytes: float
    gpus: int = 0

    @classmethod
    def here(cls) -> Machine:
        """Return this machine's."""
        return cls(len(os.sched_getaffinity(0)), free_bytes(), _gpus())


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model before it is loaded.

    engine: kind of the engine that runs it.
    layers: number of its layers.
    weight_bytes: memory of its weights in that engine.
    kv_token_bytes: bytes of a token's keys and values there.
    context: tokens that it was trained for.
    """

    model: str
    engine: str
    layers: int
    weight_bytes: float
    kv_token_bytes: int
    context: int


def inspect(
    model: str, machine: Machine, engine: str | None = None, precision: dtype.Dtype = "auto"
) -> ModelFacts:
    """Return a model's facts. engine: kind to run it; None: the one that suits it. precision: of the torch engine.

    Raises ValueError or OSError saying why it cannot be run.
    """
    model = str(Path(model).resolve()) if Path(model).exists() else model  # replicas have another folder
    folder = model_folder(model)
    kind, element_bytes = engine or _engine(folder, machine), 2
    config = require(model, kind)
    if kind == "llamacpp":
        file = Path(config[GGUF_FILE])
        weight_bytes = float(sum(file.with_name(part).stat().st_size for part in gguf_parts(file.name)))
    else:
        weight_bytes = float(sum(file.stat().st_size for file in folder.glob("*.safetensors")))
        if kind == "torch":
            element_bytes = dtype.BYTES[dtype.choose(precision, folder, gpu=machine.gpus > 0)]
            weight_bytes *= element_bytes / dtype.BYTES.get(dtype.stored_in(folder), 4)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    layers = config["num_hidden_layers"]
    kv_token_bytes = 2 * layers * kv_heads * head_dim * element_bytes
    return ModelFacts(model, kind, layers, weight_bytes, kv_token_bytes, config["max_position_embeddings"])


def _engine(folder: Path, machine: Machine) -> str:
    """Return the kind of engine that suits a model."""
    if "llamacpp" in engine_kinds(folder):
        return "llamacpp"
    with_vllm = VLLM.installed() is not None
    if machine.gpus and with_vllm:
        return "vllm"
    try:
        read_config(folder)
    except UnsupportedModel:
        if with_vllm:
            return "vllm"
        raise
    return "torch"


def _gpus() -> int:
    if not Path("/dev/nvidia0").exists():
        return 0
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
