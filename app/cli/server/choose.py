"""A deployment of models of one's own without a YAML: engines, threads and KV caches by the files and the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.deployments.pools.models import model_folder, require
from tandem.engine import dtype
from tandem.engine.memory import free_bytes
from tandem.engine.model_folder import GGUF_FILE, UnsupportedModel, engine_kinds, gguf_parts, read_config
from tandem.engine.packages import VLLM

GB = 1e9
BESIDE_BYTES = 1.5 * GB
"""Memory of Ray, Serve and the processes around the engines."""
MOST_KV_TOKENS, LEAST_KV_TOKENS = 32_768, 2_048
BLOCK = {"llamacpp": 16, "torch": 16, "vllm": 32}
"""Tokens of a block, by engine: what is not a whole block of a prefix is computed again."""
SESSIONS = 8


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
    weight_bytes: memory of its weights in that engine.
    kv_token_bytes: bytes of a token's keys and values there.
    context: tokens that it was trained for.
    """

    model: str
    engine: str
    weight_bytes: float
    kv_token_bytes: int
    context: int


def inspect(model: str, machine: Machine, engine: str | None = None) -> ModelFacts:
    """Return a model's facts. engine: kind to run it; None: the one that suits it.

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
            element_bytes = dtype.BYTES[dtype.choose("auto", folder, gpu=machine.gpus > 0)]
            weight_bytes *= element_bytes / dtype.BYTES.get(dtype.stored_in(folder), 4)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    kv_token_bytes = 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_bytes
    return ModelFacts(model, kind, weight_bytes, kv_token_bytes, config["max_position_embeddings"])


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


def kv_tokens(models: list[ModelFacts], machine: Machine) -> int:
    """Return the tokens that each model's KV cache holds. Raises ValueError with the arithmetic if there is too little
    memory."""
    weights = sum(each.weight_bytes for each in models)
    token_bytes = sum(each.kv_token_bytes for each in models)
    left = machine.free_bytes - BESIDE_BYTES - weights
    tokens = min(MOST_KV_TOKENS, int(left // token_bytes) if left > 0 else 0)
    if tokens < LEAST_KV_TOKENS:
        needed = BESIDE_BYTES + weights + LEAST_KV_TOKENS * token_bytes
        parts = " + ".join(f"{each.weight_bytes / GB:.1f} GB of {each.model}" for each in models)
        raise ValueError(
            f"{machine.free_bytes / GB:.1f} GB of memory are free, and {needed / GB:.1f} GB are needed: "
            f"{BESIDE_BYTES / GB:.1f} GB beside the models + {parts} + {LEAST_KV_TOKENS} tokens of KV cache of "
            f"{token_bytes / 1e3:.0f} kB each"
        )
    return tokens


def choose(
    model: str,
    drafter: str | None = None,
    device_model: str | None = None,
    engine: str | None = None,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Return `args` of the Serve YAML for these models: a verifier, a drafter in the cloud, a device.

    engine: kind that runs the verifier's model; None: the one that suits it.

    Raises ValueError or OSError saying why it cannot be.
    """
    machine = machine or Machine.here()
    target = inspect(model, machine, engine)
    others = [None if name is None else inspect(name, machine) for name in (drafter, device_model)]
    drafts, device = others
    tokens = kv_tokens([target, *(each for each in others if each is not None)], machine)
    args: dict[str, Any] = {
        "model": _name(model),
        "verifier": {"replicas": 1, "engine": _settings(target, tokens, machine)},
        "drafter": {"replicas": 0},
        "window": {"name": "gain"},
    }
    if target.engine == "vllm" and machine.gpus:
        args["verifier"]["gpus"] = 1
    if drafts is not None:
        args["drafter"] = {"replicas": 1, "engine": _settings(drafts, tokens, machine)}
    if device is not None:
        laptop = {"name": "laptop", "profile": "native", "link": {"rtt_ms": 5}}
        args["hosts"] = [{"name": "edge", "engine": _settings(device, tokens, machine), "devices": [laptop]}]
    return args


def alone(model: str, machine: Machine | None = None) -> dict[str, Any]:
    """Return the settings of an engine for one model, which has the machine to itself. Raises as `choose`."""
    machine = machine or Machine.here()
    facts = inspect(model, machine)
    return _settings(facts, kv_tokens([facts], machine), machine)


def _settings(facts: ModelFacts, tokens: int, machine: Machine) -> dict[str, Any]:
    """Settings of the engine of a model."""
    return {
        "kind": facts.engine,
        "model": facts.model,
        "threads": machine.cores,
        "kv_blocks": tokens // BLOCK[facts.engine],
        "block_size": BLOCK[facts.engine],
        "max_sessions": SESSIONS,
    }


def _name(model: str) -> str:
    """Name of the model for clients."""
    return Path(model).name.removesuffix(".gguf")


def _gpus() -> int:
    if not Path("/dev/nvidia0").exists():
        return 0
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
