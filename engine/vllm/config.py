"""Settings of a vLLM engine, and their translation to vLLM's own."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from tandem.engine.config import SessionLimits

SCHEDULER = "tandem.engine.vllm.scheduler.TandemScheduler"
ASYNC_SCHEDULER = "tandem.engine.vllm.scheduler.AsyncTandemScheduler"
WORKER = "tandem.engine.vllm.worker.Extension"
PROPOSER = "tandem.engine.vllm.proposer.NullProposer"
UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
OFFLOADING = "OffloadingConnector"
"""vLLM's own connector to host memory."""
OFFLOADS = ("kv_offloading_size", "kv_offloading_backend", "kv_transfer_config")
"""Arguments of vLLM that give it host memory."""
WINDOW = 8
"""Drafts that a step verifies for a session, unless the settings say."""
OURS = {
    "model": "model",
    "scheduler_cls": "scheduling",
    "worker_extension_cls": "scheduling",
    "speculative_config": "speculation",
    "max_num_seqs": "max_sessions",
    "enable_lora": "adapters",
    "num_gpu_blocks_override": "kv_blocks",
    "block_size": "block_size",
    "max_num_batched_tokens": "token_budget",
    "skip_tokenizer_init": "model",
    "additional_config": "scheduling",
    "async_scheduling": "window",
}
"""Arguments of vLLM that settings of ours stand for."""


class VllmConfig(SessionLimits):
    """Limits, memory and speculation of a vLLM engine.

    kv_blocks: number of blocks in the KV cache; null: all for which vLLM finds memory.
    block_size: tokens per block; a multiple of 32 on a CPU.
    token_budget: most positions in a step; null: vLLM's choice.
    window: most drafts that one step verifies for a session; null: 8 for a verifier where a drafter or devices may
        draft, otherwise 0. With 0, and neither `lookup` nor `speculation`, vLLM runs without a speculator: on a GPU
        with asynchronous scheduling and graphs of plain steps. Drafts that come nevertheless are verified one by one.
    lookup: most drafts that a session looks up in its own text, where that is worth the time; 0 for none.
    speculation: vLLM's own speculative_config (n-gram, EAGLE ...) for sessions that decode without a device; null for
        none. It takes the place of `lookup`.
    adapters: folders of LoRA adapters of the model, by the names under which clients ask for the model with one.
    options: further arguments of vLLM by its own names (dtype, tensor_parallel_size, kv_offloading_size ...).
    The rest: see `engine.config.SessionLimits`.
    """

    kv_blocks: int | None = Field(None, ge=8)
    block_size: int = Field(32, ge=16)
    token_budget: int | None = Field(None, ge=1)
    window: int | None = Field(None, ge=0)
    lookup: int = Field(0, ge=0, le=64)
    speculation: dict[str, Any] | None = None
    adapters: dict[str, str] = Field({})
    options: dict[str, Any] = Field({})

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.lookup and self.speculation is not None:
            raise ValueError("lookup: vLLM drafts by `speculation` already; leave one of both out")
        return self

    @property
    def speculator(self) -> dict[str, Any] | None:
        """vLLM's speculative_config; None where nothing is ever drafted."""
        most = max(WINDOW if self.window is None else self.window, self.lookup)
        room = {"num_speculative_tokens": most} if most else {}
        if self.speculation is not None:
            return room | self.speculation
        return room | {"method": "custom_class", "model": PROPOSER} if room else None

    @property
    def takes_probs(self) -> bool:
        """Whether drafts are verified with the distributions that they were drawn from."""
        return self.speculator is not None and self.speculation is None

    @property
    def host_tier(self) -> bool:
        connector = (self.options.get("kv_transfer_config") or {}).get("kv_connector")
        native = self.options.get("kv_offloading_backend", "native") == "native"
        return connector == OFFLOADING or (native and self.options.get("kv_offloading_size") is not None)

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that the KV cache holds (block 0 is vLLM's own); None where vLLM decides."""
        return None if self.kv_blocks is None else (self.kv_blocks - 1) * self.block_size

    @property
    def longest(self) -> int | None:
        """Tokens of prompt and output that `options` allow; None where they say nothing of it."""
        return self.options.get("max_model_len")


def check_options(options: dict[str, Any]) -> None:
    """Raises ValueError naming an option that vLLM has not, and the nearest that it has, or that is ours to set."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in options:
        if name in OURS:
            raise ValueError(f"options.{name}: that is set by engine.{OURS[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"options.{name}: vLLM has no such argument{hint}")


RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Greatest ranks that vLLM has room for, as its own `max_lora_rank` takes them."""


def adapter_rank(folder: str) -> int:
    """Return the rank of the LoRA adapter in a folder. Raises ValueError if there is none that vLLM can use."""
    path = Path(folder).expanduser()
    try:
        config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        kind, rank = config["peft_type"], int(config["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is no adapter's folder: {type(error).__name__}: {error}") from None
    if kind != "LORA" or not 1 <= rank <= RANKS[-1]:
        raise ValueError(
            f"{folder} has an adapter of kind {kind} and rank {rank}; LORA to rank {RANKS[-1]} is possible"
        )
    if not (path / "adapter_model.safetensors").is_file():
        raise ValueError(f"{folder} has no adapter_model.safetensors")
    return rank


def _rank(adapters: Mapping[str, str]) -> int:
    most = max(map(adapter_rank, adapters.values()))
    return next(rank for rank in RANKS if rank >= most)


def arguments(folder: Path, config: VllmConfig) -> Any:
    """vLLM's AsyncEngineArgs. Raises ValueError for options that it has not."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    check_options(config.options)
    speculator = config.speculator
    scheduling = config.scheduling and config.scheduling.model_dump()
    given: dict[str, Any] = {
        "model": str(folder),
        "scheduler_cls": ASYNC_SCHEDULER if speculator is None else SCHEDULER,
        "async_scheduling": None if speculator is None else False,  # None: where vLLM can
        "worker_extension_cls": WORKER,
        "speculative_config": speculator,
        "max_num_seqs": config.max_sessions,
        "num_gpu_blocks_override": config.kv_blocks,
        "block_size": config.block_size,
        "max_num_batched_tokens": config.token_budget,
        "skip_tokenizer_init": True,
        "additional_config": {
            "scheduling": scheduling,
            "max_running": config.max_running,
            "lookup": config.lookup,
        },
        "disable_log_stats": True,
    }
    if config.host_tier:  # preempted sessions come back with their output, too
        given["kv_transfer_config"] = {"kv_connector_extra_config": {"offload_prompt_only": False}}
    if config.adapters:
        given |= {
            "enable_lora": True,
            "max_loras": len(config.adapters),
            "max_lora_rank": _rank(config.adapters),
        }
    if current_platform.is_cpu():  # nothing is compiled there, as in what the benchmarks compare
        given |= {"dtype": "float32", "enforce_eager": True}
    if config.options.get("tensor_parallel_size", 1) == 1:
        given["distributed_executor_backend"] = UNIPROC
    return AsyncEngineArgs(**given | config.options)
