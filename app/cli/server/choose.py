"""A deployment of models of one's own without a YAML: engines, threads and KV caches follow from files and machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.app.cli.server.facts import Machine, ModelFacts, inspect
from tandem.app.cli.server.memory import BESIDE_BYTES, too_little

MOST_KV_TOKENS = 16_384
"""Tokens of a KV cache that all sessions of a model share: its memory is taken at the start."""
GPU_KV_TOKENS, DEVICE_KV_TOKENS, LEAST_KV_TOKENS = 32_768, 8_192, 2_048
"""Tokens of such a cache on a GPU, and on a device beside a cloud; and the fewest with which a model is started."""
BLOCK = {"llamacpp": 16, "torch": 16, "vllm": 32}
"""Tokens of a block, by engine: what is not a whole block of a prefix is computed again."""
SESSIONS = 8
SERVICE = "openai"
"""Kind of an engine that is a service."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service with OpenAI's API that has the large model.

    base_url: address of its API, up to and with /v1.
    tokenizer: model whose tokenizer counts tokens on this side; None: the device's or drafter's.
    key_env: environment variable with its key; None if it asks for none.
    route: its route, see `engine.service.config.ServiceConfig`.
    """

    base_url: str
    tokenizer: str | None = None
    key_env: str | None = None
    route: str = "chat"

    def settings(self, model: str, small: str | None) -> dict[str, Any]:
        """Return the settings of its engine. small: a local model whose tokenizer will do. Raises ValueError."""
        tokenizer = self.tokenizer or small
        if tokenizer is None:
            raise ValueError(
                "--tokenizer is missing: a folder, GGUF file or hub's model with the model's tokenizer"
            )
        found = Path(tokenizer)
        said = {
            "kind": SERVICE,
            "base_url": self.base_url,
            "model": model,
            "tokenizer": str(found.resolve()) if found.exists() else tokenizer,
            "route": self.route,
        }
        return said if self.key_env is None else said | {"api_key_env": self.key_env}


def kv_tokens(models: Sequence[ModelFacts], machine: Machine) -> int:
    """Return the tokens that each model's KV cache holds at most. Raises ValueError with the arithmetic if there is too
    little memory."""
    weights = sum(each.weight_bytes for each in models)
    token_bytes = sum(each.kv_token_bytes for each in models)
    left = machine.free_bytes - BESIDE_BYTES - weights
    most = GPU_KV_TOKENS if machine.gpus else MOST_KV_TOKENS
    tokens = min(most, int(left // token_bytes) if left > 0 else 0)
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
    service: Service | None = None,
) -> dict[str, Any]:
    """Return `args` of the Serve YAML for these models: a verifier, a drafter in the cloud, a device. Requests that
    name no mode get the one of which the policy `auto` expects most.

    engine: kind that runs the verifiers' models; None: the one that suits each.
    others: further models behind the same address, without drafters in the cloud; the device drafts for all.
    service: the service that has the models, by their names there; None: this machine runs them.

    Raises ValueError or OSError saying why it cannot be.
    """
    machine = machine or Machine.here()
    names = [_name(each) for each in (model, *others)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"several models would be called {', '.join(twice)}: rename a file")
    if service is not None and drafter is not None:
        raise ValueError(
            "--drafter: a service verifies no drafts; --device-model names a small model that races it"
        )
    small = [None if name is None else inspect(name, machine) for name in (drafter, device_model)]
    drafts, device = small
    here = [each for each in small if each is not None]
    if service is None:
        targets = [inspect(each, machine, engine) for each in (model, *others)]
        here = [*targets, *here]
        on_gpus = sum(target.engine == "vllm" for target in targets) if machine.gpus else 0
        if on_gpus > machine.gpus:
            raise ValueError(f"{on_gpus} models on vLLM need a GPU each, and there are {machine.gpus}")
        tokens = kv_tokens(here, machine)
        pools = [_pools(target, tokens, machine) for target in targets]
    else:
        tokens = kv_tokens(here, machine) if here else 0
        tokenizer = next((each.model for each in reversed(here)), None)
        engines = [service.settings(each, tokenizer) for each in (model, *others)]
        pools = [
            {"verifier": {"replicas": 1, "engine": each}, "drafter": {"replicas": 0}} for each in engines
        ]
    if drafts is not None:
        pools[0]["drafter"] = {"replicas": 1, "engine": _settings(drafts, tokens, machine)}
    served = {"models": dict(zip(names, pools, strict=True))} if others else {"model": names[0], **pools[0]}
    args: dict[str, Any] = {
        **served,
        "ingress_replicas": 1,  # each has every tokenizer, and one that ends is replaced
        "window": {"name": "gain"},
        "router": {"collaboration": {"name": "auto"}},
    }
    if device is not None:
        laptop = {"name": "laptop", "profile": "native", "link": {"rtt_ms": 5}}
        engine_of_device = _settings(device, min(tokens, DEVICE_KV_TOKENS), machine)
        args["hosts"] = [{"name": "edge", "engine": engine_of_device, "devices": [laptop]}]
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
