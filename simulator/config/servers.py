"""Groups of servers in a simulation: their engines, hardware and step times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from tandem.deployments.config.settings import LatencySettings
from tandem.deployments.pools.autoscaling import AutoscalingSettings
from tandem.deployments.request.pools import MIDDLE, VERIFIER
from tandem.engine import vllm
from tandem.engine.config import BatchingChoice, EngineConfig, SessionLimits, Strict
from tandem.engine.core.split.pipeline import spread
from tandem.engine.packages import VLLM
from tandem.engine.vllm.config import OFFLOADS, VllmConfig, check_options
from tandem.policies.scheduling.batching import ChunkedPrefill
from tandem.simulator import hardware
from tandem.simulator.hardware import MeasuredTimer, StepTimer

MAX_SESSIONS = 256  # vLLM's default, for servers of named hardware
MAX_WAITING = 1_000_000  # no limit in practice
VLLM_KV_BLOCKS = 1024  # where step times were measured; a live vLLM fills the memory it finds
VLLM_TOKEN_BUDGET = 2048  # vLLM's default on most machines


class ServiceConfig(SessionLimits):
    """Settings of both kinds of engine. A key whose value is null counts as missing.

    latency: a commercial service's time to first token, where it is longer than the engine's; null for none.
    """

    latency: LatencySettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, raw: Any) -> Any:
        return {k: v for k, v in raw.items() if v is not None} if isinstance(raw, dict) else raw


class TimedEngineConfig(ServiceConfig, EngineConfig):
    """Tandem's own engine, with the keys of `engine:` in the application's pools.

    Missing keys have the application's defaults where step times were measured. On named hardware they follow from
    hardware and model: `kv_blocks` from the memory beside the weights, `token_budget` and the chunks of `batching`
    from the step times (see `hardware.batching`); `max_sessions` is 256 and `max_waiting` unlimited.

    kind: the engine's kind.
    """

    kind: Literal["torch"] = "torch"

    def as_drafter(self) -> TimedEngineConfig:
        """Return the configuration of a drafter beside it: first come, first served, without host memory."""
        return self.model_copy(update={"scheduling": None, "host_memory": None})

    @field_validator("host_memory", mode="after")
    @classmethod
    def _has_copy_speed(cls, host: Any) -> Any:
        if host is not None and host.copy_mb_per_s is None:
            raise ValueError("needs copy_mb_per_s: a simulation cannot measure it")
        return host


class TimedVllmConfig(ServiceConfig, VllmConfig):
    """vLLM, with the keys of `engine:` in the application's pools, but no model folder.

    Missing keys follow from hardware and model as for the other kind, except `token_budget`.

    kind: the engine's kind.
    copy_mb_per_s: bandwidth of the link to host memory in each direction, megabytes/s; needed where vLLM offloads to it
        (`options: {kv_offloading_size: GIBIBYTES}`).
    """

    kind: Literal["vllm"]
    copy_mb_per_s: float | None = Field(None, gt=0)

    def as_drafter(self) -> TimedVllmConfig:
        """Return the configuration of a drafter beside it: first come, first served, without host memory."""
        options = {key: value for key, value in self.options.items() if key not in OFFLOADS}
        return self.model_copy(update={"scheduling": None, "copy_mb_per_s": None, "options": options})

    @field_validator("speculation")
    @classmethod
    def _no_speculation(cls, speculation: Any) -> None:
        if speculation is not None:
            raise ValueError("a simulation does not know what vLLM's own proposers would say")

    @model_validator(mode="after")
    def _vllm_is_installed(self) -> TimedVllmConfig:
        if self.host_tier != (self.copy_mb_per_s is not None):
            raise ValueError(
                "copy_mb_per_s and options.kv_offloading_size go together: a simulation cannot measure the link"
            )
        VLLM.require()
        if self.options:  # vLLM takes seconds to import
            vllm.set_environment()
            check_options(self.options)
        return self


def _kind(raw: Any) -> str:
    kind = raw.get("kind") if isinstance(raw, dict) else getattr(raw, "kind", None)
    return str(kind or "torch")


ServerEngine = Annotated[
    Annotated[TimedEngineConfig, Tag("torch")] | Annotated[TimedVllmConfig, Tag("vllm")],
    Discriminator(_kind),
]


class TargetGroup(Strict):
    """Identical servers of the cloud pool.

    count: number of servers.
    hardware, model: names known to the hardware model ("4xA100", "Llama-2-70B").
    first: first layer of a split model's middle, which these servers hold; devices hold the layers before. null for
        whole models.
    stages: P, pipeline stages of a middle, each on such hardware of its own; passing data between them takes no time.
    measured: step times of a live engine, in place of hardware; `model` is then any name.
    draft_model: a small model on the same hardware that drafts in fused rounds; null for none.
    measured_draft: step times of such a model, in place of draft_model.
    table, draft_table: files of measured step times in place of these, see `hardware.measured`.
    kv_bytes: bytes of KV cache a token, for host memory; null: the model's.
    engine: memory, limits and policies that differ from the simulation's `engine`.
    padded: a step costs as if every sequence were as long as the longest, and every window as wide as the widest.
    call_s: time of each call besides its steps (wire, threads), seconds.
    autoscaling: as in the application's pools, starting from `count` servers; null: always `count`.
    start_s: time to start a further server, seconds.
    drain_s: time for which a server that is stopped finishes its sessions before they move elsewhere, seconds.
    """

    count: int = Field(1, ge=1)
    hardware: str | None = None
    model: str
    first: int | None = Field(None, ge=1)
    stages: int = Field(1, ge=1)
    measured: MeasuredTimer | None = None
    draft_model: str | None = None
    measured_draft: MeasuredTimer | None = None
    table: str | None = None
    draft_table: str | None = None
    kv_bytes: int | None = Field(None, ge=1)
    engine: ServerEngine = TimedEngineConfig()
    padded: bool = False
    call_s: float = Field(0.0, ge=0)
    autoscaling: AutoscalingSettings | None = None
    start_s: float = Field(30.0, ge=0)
    drain_s: float = Field(10.0, ge=0)

    @property
    def initial_count(self) -> int:
        """Number of servers at the start."""
        if (bounds := self.autoscaling) is None:
            return self.count
        return min(max(self.count, bounds.min_replicas), bounds.max_replicas)

    @property
    def drafts(self) -> bool:
        """Whether a small model drafts beside each server."""
        return bool(self._drafters)

    @property
    def _drafters(self) -> list[object]:
        ways = (self.draft_model, self.measured_draft, self.draft_table)
        return [way for way in ways if way is not None]

    @property
    def pool(self) -> str:
        """Name of the servers' pool."""
        return VERIFIER if self.first is None else MIDDLE

    @property
    def kv_token_bytes(self) -> int | None:
        """Bytes of KV cache a token; None if unknown, as without hardware."""
        if self.kv_bytes is not None or self.hardware is None:
            return self.kv_bytes
        return hardware.kv_bytes(self.model)

    @model_validator(mode="after")
    def _is_consistent(self) -> TargetGroup:
        if sum(way is not None for way in (self.hardware, self.measured, self.table)) != 1:
            raise ValueError("a target needs either hardware, or measured, or table")
        if len(self._drafters) > 1 or (self.draft_model is not None and self.hardware is None):
            raise ValueError("draft_model goes with hardware, and without measured_draft or draft_table")
        for table in (self.table, self.draft_table):
            if table is not None:
                hardware.table(table)
        if self.first is not None:
            if self.drafts:
                raise ValueError("a middle has no drafter beside it")
            if self.engine.latency is not None:
                raise ValueError("a middle is no service with a latency of its own")
        if self.stages > 1 and (self.first is None or self.hardware is None):
            raise ValueError("stages are of a middle (first) on hardware")
        if self.hardware is not None:
            hardware.check(self.hardware, self.model)
            layers = hardware.shape_of(self.model).layers
            if self.first is not None and self.first >= layers:
                raise ValueError(f"first must be below {self.model}'s {layers} layers, not {self.first}")
            if self.first is not None:
                spread(self.first, layers, self.stages)
            if self.draft_model is not None:
                hardware.check(self.hardware, self.draft_model)
        return self

    def timer(self, data: Path | None) -> StepTimer:
        """Step times of a server. data: folder of the tables, see `hardware.data_folder`."""
        if self.hardware is None:
            timer = self.measured if self.table is None else hardware.table(self.table)
            assert timer is not None
            return timer
        if self.first is not None:
            return self.stage_timers(data)[0]
        return hardware.timer(self.hardware, self.model, data)

    def stage_timers(self, data: Path | None) -> list[StepTimer]:
        """Step times of each stage of a middle."""
        if self.hardware is None or self.first is None:
            return [self.timer(data)]
        layers = hardware.shape_of(self.model).layers
        return [
            hardware.middle_timer(self.hardware, self.model, end - begin, data)
            for begin, end in spread(self.first, layers, self.stages)
        ]

    def draft_timer(self, data: Path | None) -> StepTimer | None:
        """Step times of the small model beside each server; None if there is none."""
        if self.draft_table is not None:
            return hardware.table(self.draft_table)
        if self.draft_model is None or self.hardware is None:
            return self.measured_draft
        return hardware.timer(self.hardware, self.draft_model, data)

    def with_defaults(self, common: ServerEngine) -> TargetGroup:
        """This group with the simulation's engine settings where its own engine has none.

        Keys that its kind of engine does not have are left out.
        """
        if self.first is not None:  # neither vLLM nor a commercial service can serve a middle
            if isinstance(common, TimedVllmConfig):
                common = TimedEngineConfig()
            else:
                common = common.model_copy(update={"latency": None})
        if "engine" not in self.model_fields_set:
            return self.model_copy(update={"engine": common})
        own = self.engine
        inherited = common.model_fields_set & set(type(own).model_fields) - own.model_fields_set - {"kind"}
        engine = own.model_copy(update={key: getattr(common, key) for key in inherited})
        return self.model_copy(update={"engine": engine})

    def complete_engine(self, data: Path | None) -> ServerEngine:
        """The engine's settings, missing ones derived from hardware and model.

        Raises UnknownHardware if the model does not fit.
        """
        engine = self.engine
        given = engine.model_fields_set
        derived: dict[str, Any] = {}
        if self.hardware is not None:
            if "kv_blocks" not in given:
                places = self.hardware if self.stages == 1 else f"{self.stages}x{self.hardware}"
                derived["kv_blocks"] = hardware.kv_tokens(places, self.model) // engine.block_size
            if "max_sessions" not in given:
                derived["max_sessions"] = MAX_SESSIONS
            if "max_waiting" not in given:
                derived["max_waiting"] = MAX_WAITING
        if isinstance(engine, TimedVllmConfig):
            defaults = {"kv_blocks": VLLM_KV_BLOCKS, "token_budget": VLLM_TOKEN_BUDGET}
            derived = {key: value for key, value in defaults.items() if key not in given} | derived
        elif self.hardware is not None:
            derived |= self._derive_batching(engine, derived.get("max_sessions", engine.max_sessions), data)
        return engine.model_copy(update=derived)

    def _derive_batching(self, engine: TimedEngineConfig, sessions: int, data: Path | None) -> dict[str, Any]:
        derived: dict[str, Any] = {}
        steps = hardware.derive_batching(self.timer(data))
        parameters = dict(engine.batching.parameters)
        if isinstance(engine.batching.create(), ChunkedPrefill):
            parameters = {"chunk": steps.chunk, "context_doubles": steps.context_doubles} | parameters
            derived["batching"] = BatchingChoice(name=engine.batching.name, parameters=parameters)
        if "token_budget" not in engine.model_fields_set:  # a chunk, and a token of every session
            derived["token_budget"] = parameters.get("chunk", steps.chunk) + sessions
        return derived

    def batching_source(self, data: Path | None) -> str:
        """The batching policy with its parameters, and which of them were derived."""
        engine, complete = self.engine, self.complete_engine(data)
        if not isinstance(engine, TimedEngineConfig) or not isinstance(complete, TimedEngineConfig):
            return f"vLLM, token_budget {complete.token_budget}"
        parameters = ", ".join(f"{key} {value}" for key, value in complete.batching.parameters.items())
        derived = [key for key in complete.batching.parameters if key not in engine.batching.parameters]
        derived += [] if "token_budget" in engine.model_fields_set else ["token_budget"]
        source = f"{complete.batching.name} {parameters}, token_budget {complete.token_budget}"
        return source + (f" (from step times: {', '.join(derived)})" if derived else "")
