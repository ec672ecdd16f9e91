"""A deployment of models of one's own without a YAML: engines, threads and KV caches by the files and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandem.app.cli.server.facts import Machine, ModelFacts, inspect
from tandem.app.cli.server.memory import BESIDE_BYTES, too_little

MOST_KV_TOKENS, LEAST_KV_TOKENS = 32_768, 2_048
BLOCK = {"llamacpp": 16, "torch": 16, "vllm": 32}
"""Tokens of a block, by engine: what is not a whole block of a prefix is computed again."""
SESSIONS = 8


def kv_tokens(models: list[ModelFacts], machine: Machine) -> int:
    """Return the tokens that each model's KV cache holds. Raises ValueError with the arithmetic if there is too little
    memory."""
    weights = sum(each.weight_bytes for each in models)
    token_bytes = sum(each.kv_token_bytes for each in models)
    left = machine.free_bytes - BESIDE_BYTES - weights
    tokens = min(MOST_KV_TOKENS, int(left // token_bytes) if left > 0 else 0)
    if tokens < LEAST_KV_TOKENS:
        cache = f"{LEAST_KV_TOKENS} tokens of KV cache of {token_bytes / 1e3:.0f} kB each"
        parts = {each.model: each.weight_bytes for each in models}
        raise ValueError(too_little(machine, parts | {cache: LEAST_KV_TOKENS * token_bytes}))
    return tokens


def choose(
    model: str,
    drafter: str | None = None,
    device_model: str | None = None,
    engine: str | None = None,
    machine: Machine | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `args` of the Serve YAML for these models: a verifier, a drafter in the cloud, a device.

    engine: kind that runs the verifiers' models; None: the one that suits each.
    others: further models behind the same address, without drafters in the cloud; the device drafts for all.

    Raises ValueError or OSError saying why it cannot be.
    """
    machine = machine or Machine.here()
    names = [_name(each) for each in (model, *others)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several models would be called {', '.join(twice)}: rename a file")
    targets = [inspect(each, machine, engine) for each in (model, *others)]
    drafts, device = (None if name is None else inspect(name, machine) for name in (drafter, device_model))
    tokens = kv_tokens([*targets, *(each for each in (drafts, device) if each is not None)], machine)
    on_gpus = sum(target.engine == "vllm" for target in targets) if machine.gpus else 0
    if on_gpus > machine.gpus:
        raise ValueError(f"{on_gpus} models on vLLM need a GPU each, and there are {machine.gpus}")
    pools = [_pools(target, tokens, machine) for target in targets]
    if drafts is not None:
        pools[0]["drafter"] = {"replicas": 1, "engine": _settings(drafts, tokens, machine)}
    served = {"models": dict(zip(names, pools, strict=True))} if others else {"model": names[0], **pools[0]}
    args: dict[str, Any] = {**served, "window": {"name": "gain"}}
    if device is not None:
        laptop = {"name": "laptop", "profile": "native", "link": {"rtt_ms": 5}}
        args["hosts"] = [{"name": "edge", "engine": _settings(device, tokens, machine), "devices": [laptop]}]
    return args


def alone(model: str, machine: Machine | None = None) -> dict[str, Any]:
    """Return the settings of an engine for one model, which has the machine to itself. Raises as `choose`."""
    machine = machine or Machine.here()
    facts = inspect(model, machine)
    return _settings(facts, kv_tokens([facts], machine), machine)


def _pools(target: ModelFacts, tokens: int, machine: Machine) -> dict[str, Any]:
    """Return the settings of a model's pools, a drafter not among them."""
    verifier: dict[str, Any] = {"replicas": 1, "engine": _settings(target, tokens, machine)}
    if target.engine == "vllm" and machine.gpus:
        verifier["gpus"] = 1
    return {"verifier": verifier, "drafter": {"replicas": 0}}


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
