"""Settings of engines: one vocabulary for live engines, the application's settings and simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandem.policies.base import Registry
from tandem.policies.cost import PerToken, per_million
from tandem.policies.scheduling import SchedulingPolicy, scheduling
from tandem.policies.scheduling.batching import BatchingPolicy, batching

P = TypeVar("P")


class Strict(BaseModel):
    """Settings that refuse unknown names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Priced(Strict):
    """Prices of what has its own.

    price_in: dollars per million prompt tokens; null: the application's `accounts.price_in`.
    price_out: dollars per million output tokens; null: the application's `accounts.price_out`.
    """

    price_in: float | None = Field(None, ge=0, allow_inf_nan=False)
    price_out: float | None = Field(None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _prices_go_together(self) -> Self:
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("price_in and price_out go together: give both or none")
        return self

    @property
    def price(self) -> PerToken | None:
        """Dollars per token; None for the application's prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return per_million(self.price_in, self.price_out)


class PolicyChoice(Strict, Generic[P]):
    """A policy by its registered name, with its parameters. Each family has a subclass."""

    family: ClassVar[Registry[Any]]
    name: str
    parameters: dict[str, Any] = {}

    @model_validator(mode="after")
    def _exists(self) -> Self:
        self.create()
        return self

    def create(self) -> P:
        """Build the policy. Raise ValueError naming the registered policies, or the wrong parameter."""
        try:
            policy: P = self.family.create(self.name, **self.parameters)
        except TypeError as error:
            wrong = str(error).partition("() ")[2] or error  # without the name of a Python function
            raise ValueError(f"{self.family.family} policy {self.name!r}: {wrong}") from None
        return policy


@dataclass(frozen=True, slots=True)
class Given(Generic[P]):
    """Takes the place of a PolicyChoice where a policy has no name. create: builds the policy."""

    create: Callable[[], P]


class BatchingChoice(PolicyChoice[BatchingPolicy]):
    """A batching policy."""

    family = batching


class SchedulingChoice(PolicyChoice[SchedulingPolicy]):
    """A scheduling policy."""

    family = scheduling


class HostMemory(Strict):
    """Host memory beside the KV cache, to which preempted sessions are copied.

    blocks: number of KV blocks that it holds.
    copy_mb_per_s: bandwidth of the link in each direction, megabytes/s. Emulated on a CPU (null: as fast as memory
        is); measured on a GPU; required in simulations.
    write_through: whether to copy full blocks as they are computed, so that preemption costs next to nothing.
    overlap: whether to load while saves are running.
    """

    blocks: int = Field(4096, ge=1)
    copy_mb_per_s: float | None = Field(None, gt=0)
    write_through: bool = True
    overlap: bool = True


class SessionLimits(Strict):
    """Limits of an engine's sessions, and the policy that picks which run.

    max_sessions: most sessions that hold KV blocks at once.
    max_waiting: most further sessions that wait before one is refused.
    scheduling: policy that chooses the sessions to run while not all can; null: first come, first served.
    max_running: most sessions that `scheduling` lets run at once; null: max_sessions.
    """

    max_sessions: int = Field(64, ge=1)
    max_waiting: int = Field(256, ge=0)
    scheduling: SchedulingChoice | None = None
    max_running: int | None = Field(None, ge=1)

    @property
    def host_tier(self) -> bool:
        """Whether the KV cache of preempted sessions can be kept in host memory."""
        return False

    @property
    def scheduling_warning(self) -> str | None:
        """Warning for an operator about `scheduling`; None if there is none.

        TokenFlow's policy relies on host memory. Without it, preempted sessions are recomputed, so the policy preempts
        few and lets a heavy burst begin later than first come, first served.
        """
        if self.host_tier or self.scheduling is None or self.scheduling.name != "buffer_aware":
            return None
        return (
            "scheduling: buffer_aware without a host tier of the KV cache lets a heavy burst begin later than first "
            "come, first served, for fewer stalls: give the engine host memory, or leave scheduling out"
        )

    @property
    def places(self) -> int:
        """Sessions that the engine holds at once."""
        return self.max_sessions

    @property
    def batch_limit(self) -> int:
        """Most sessions in a step."""
        return min(self.max_sessions, self.max_running or self.max_sessions)


class EngineConfig(SessionLimits):
    """Memory, limits and policies of the engines with Tandem's own core.

    kv_blocks: number of blocks in the KV cache.
    block_size: tokens per block.
    token_budget: most positions in a step.
    lookup: most drafts that a decoding session looks up in its own text, where that is worth the time; 0 for none.
    batching: policy that forms the batch of a step.
    prefix_caching: whether the KV cache of ended sessions is kept for prompts that begin as they did. Without it, a
        prompt takes as long, and rounds alike, however often it comes.
    host_memory: second tier of the KV cache; null for none. Other fields: see SessionLimits.
    """

    kv_blocks: int = Field(2048, ge=8)
    block_size: int = Field(16, ge=1)
    token_budget: int = Field(512, ge=1)
    lookup: int = Field(0, ge=0, le=64)
    batching: BatchingChoice = BatchingChoice(name="chunked")
    prefix_caching: bool = True
    host_memory: HostMemory | None = None

    @property
    def host_tier(self) -> bool:
        return self.host_memory is not None

    @property
    def max_cached(self) -> int | None:
        """Most blocks that are kept without a session; None for no such limit."""
        return None if self.prefix_caching else 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size

    @property
    def batch_limit(self) -> int:
        limits = (self.max_sessions, self.max_running, self.batching.create().size)
        return min(limit for limit in limits if limit is not None)
