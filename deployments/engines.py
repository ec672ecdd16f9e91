"""From settings to a running engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from cluster.delayed import Delayed
from cluster.latency import LogNormal
from deployments.settings import PolicyChoice, Strict
from engine.base import Engine
from policies.batching import batching
from policies.scheduling import scheduling


class HostMemory(Strict):
    """Host memory beside the KV cache, see `engine.hosttier.TierSettings`. copy_mb_per_s: emulates a link of so many
    megabytes/s between the two on a CPU; null: as fast as memory is."""

    blocks: int = Field(4096, ge=1)
    copy_mb_per_s: float | None = Field(None, gt=0)
    write_through: bool = True
    overlap: bool = True


class LatencySettings(Strict):
    """Emulates a commercial service's time to first token, a log-normal; see `cluster.delayed`."""

    median_s: float = Field(gt=0)
    sigma: float = Field(0.0, ge=0)
    seed: int = 0


class TorchSettings(Strict):
    """The batched torch engine.

    model: a model of the embedded family ("target", "small" ...) or a local Hugging Face folder.
    grow: repeat the network's depth this many times without changing its outputs (for experiments).
    threads: of torch, None for torch's own choice; kv_blocks × block_size: tokens of KV cache;
    token_budget: positions computed in one step; max_sessions, max_waiting: sessions
    worked on at once, and waiting for a place.
    scheduling: who runs while not all can, null for whoever came first; max_running: sessions that it lets
    run at once, null for max_sessions. host_memory: a second tier of the KV cache. latency: emulated, of the
    first token of every session.
    """

    kind: Literal["torch"] = "torch"
    model: str = "target"
    grow: int = Field(1, ge=1, le=64)
    threads: int | None = Field(1, ge=1)
    kv_blocks: int = Field(2048, ge=8)
    block_size: int = Field(16, ge=1)
    token_budget: int = Field(512, ge=16)
    max_sessions: int = Field(64, ge=1)
    max_waiting: int = Field(256, ge=0)
    batching: PolicyChoice = PolicyChoice(name="chunked")
    scheduling: PolicyChoice | None = None
    max_running: int | None = Field(None, ge=1)
    host_memory: HostMemory | None = None
    latency: LatencySettings | None = None

    @model_validator(mode="after")
    def _policies_exist(self) -> TorchSettings:
        self.batching.create(batching)
        if self.scheduling is not None:
            self.scheduling.create(scheduling)
        return self

    @property
    def batch_limit(self) -> int:
        """Sessions that a step takes at most."""
        limits = (self.max_sessions, self.max_running, self.batching.create(batching).size)
        return min(limit for limit in limits if limit is not None)


class NullSettings(Strict):
    """The engine without a model, for tests and benchmarks of everything around an engine.

    tokens_per_s: pace of a session, None for as fast as it goes; mistake_every: every n-th draft is wrong.
    """

    kind: Literal["null"]
    tokens_per_s: float | None = Field(None, gt=0)
    mistake_every: int = Field(0, ge=0)
    vocab_size: int = Field(2048, ge=32)
    context: int = Field(512, ge=16)
    capacity: int = Field(1024, ge=1)

    @property
    def batch_limit(self) -> int:
        """Sessions that a step takes at most."""
        return self.capacity


EngineSettings = Annotated[TorchSettings | NullSettings, Field(discriminator="kind")]


def build_engine(settings: TorchSettings | NullSettings) -> Engine:
    """Load and start the engine; takes seconds for a torch engine. Raises FileNotFoundError, ValueError."""
    if isinstance(settings, NullSettings):
        from engine.null_engine import NullEngine

        return NullEngine(**settings.model_dump(exclude={"kind"}))

    from engine.hosttier import TierSettings  # imports torch: only where a model runs
    from engine.torch_engine import TorchEngine

    host, tier = settings.host_memory, None
    if host is not None:
        bytes_per_s = None if host.copy_mb_per_s is None else host.copy_mb_per_s * 1e6
        tier = TierSettings(host.blocks, bytes_per_s, host.write_through, host.overlap)

    engine: Engine = TorchEngine.load(
        model_folder(settings.model),
        grow=settings.grow,
        num_blocks=settings.kv_blocks,
        block_size=settings.block_size,
        threads=settings.threads,
        batching=settings.batching.create(batching),
        token_budget=settings.token_budget,
        max_sessions=settings.max_sessions,
        max_waiting=settings.max_waiting,
        scheduling=None if settings.scheduling is None else settings.scheduling.create(scheduling),
        max_running=settings.max_running,
        tier=tier,
    )
    if (latency := settings.latency) is not None:
        engine = Delayed(engine, LogNormal(median_s=latency.median_s, sigma=latency.sigma), latency.seed)
    return engine


def model_folder(model: str) -> Path:
    """Where a model lies: a folder that exists, or a name of the embedded family."""
    folder = Path(model)
    if folder.is_dir():
        return folder
    from engine import family

    return family.path(model)


def context_of(settings: TorchSettings | NullSettings) -> int:
    """Tokens of prompt and output that the model can hold, without loading it."""
    if isinstance(settings, NullSettings):
        return settings.context
    config = json.loads((model_folder(settings.model) / "config.json").read_text(encoding="utf-8"))
    return int(config["max_position_embeddings"])
