"""Makes running engines from settings."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from tandem.cluster.link.delayed_engine import Delayed
from tandem.cluster.link.latency import LogNormal
from tandem.deployments.config.explain import explain
from tandem.deployments.config.settings import LatencySettings
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Engine
from tandem.engine.config import EngineConfig, Strict
from tandem.engine.llamacpp.config import LlamacppConfig
from tandem.engine.memory import give_back
from tandem.engine.models.dtype import Dtype
from tandem.engine.models.model_folder import GGUF_FILE, read_config
from tandem.engine.packages import LLAMACPP
from tandem.engine.service.config import ServiceConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.vllm.config import VllmConfig

logger = logging.getLogger("ray.serve")


class TorchSettings(EngineConfig):
    """The batched torch engine.

    kind: kind of engine.
    model: a model of the embedded family ("target", "small" ...), a Hugging Face folder, or a hub's model.
    dtype: precision of weights and KV cache. auto: that of the model's files on a GPU, bfloat16 in place of float32; on
        a CPU bfloat16 for a large model whose files are in it, if the CPU multiplies such numbers, otherwise float32.
    memory_fraction: share of the memory that is free once the weights are loaded, for the KV cache, which then holds at
        least the model's context; in place of kv_blocks, null for these.
    grow: repeat the network's depth this many times without changing its outputs (for experiments).
    threads: torch's threads; null for torch's own choice.
    latency: emulated latency of every session's first token.
    The rest: see `engine.config.EngineConfig`.
    """

    kind: Literal["torch"] = "torch"
    model: str = "target"
    dtype: Dtype = "auto"
    memory_fraction: float | None = Field(None, gt=0, le=1)
    grow: int = Field(1, ge=1, le=64)
    threads: int | None = Field(1, ge=1)
    latency: LatencySettings | None = None

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.memory_fraction is not None and "kv_blocks" in self.model_fields_set:
            raise ValueError("memory_fraction and kv_blocks both size the KV cache: give one of them")
        return self


class MiddleSettings(EngineConfig):
    """The layers between of a split model, on the torch engine.

    kind: kind of engine.
    model: the whole model, as for a torch engine.
    first: m, number of layers that the devices hold; the middle begins with the next one.
    stages: P, stages over which its layers are spread; each computes batches of its own, with threads of its own.
    threads: torch's threads in a stage; null for torch's own choice.
    The rest: see `engine.config.EngineConfig`.
    """

    kind: Literal["torch"] = "torch"
    model: str = "target"
    first: int = Field(2, ge=1)
    stages: int = Field(1, ge=1, le=64)
    threads: int | None = Field(1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _not_vllm(cls, said: Any) -> Any:
        if isinstance(said, dict) and said.get("kind") == "vllm":
            raise ValueError("vLLM cannot be a middle: hidden states do not pass through it; kind torch does")
        return said


class VllmSettings(VllmConfig):
    """vLLM, for models of one's own and for GPUs.

    kind: kind of engine.
    model: a Hugging Face folder, a hub's model, or one of the embedded family.
    threads: torch's threads on a CPU; null for torch's own choice.
    The rest: see `engine.vllm.config.VllmConfig`.
    """

    kind: Literal["vllm"]
    model: str
    threads: int | None = Field(1, ge=1)


class LlamacppSettings(LlamacppConfig):
    """llama.cpp, for GGUF models on clouds without a GPU and on devices.

    kind: kind of engine.
    model: a GGUF file, here or on a hub.
    threads: most threads of a step; null for one on each CPU that the process may use. A step has fewer while other
        programs keep cores busy.
    latency: emulated latency of every session's first token.
    The rest: see `engine.llamacpp.config.LlamacppConfig`.
    """

    kind: Literal["llamacpp"]
    model: str
    threads: int | None = Field(None, ge=1)
    latency: LatencySettings | None = None


class ServiceSettings(ServiceConfig):
    """Any service with OpenAI's API: a commercial one, vLLM, llama.cpp's server, Ollama.

    kind: kind of engine.
    others: further services of a pool, of each what differs from this one; the router chooses among them as among
        replicas. None waits for its own limits then, where `rate_limit.wait_s` is not given: another may answer.
    The rest: see `engine.service.config.ServiceConfig`.
    """

    kind: Literal["openai"]
    others: tuple[dict[str, Any], ...] = ()

    @property
    def services(self) -> tuple[ServiceSettings, ...]:
        """Return the settings of each service. Raise ValueError for some that are not valid."""
        if not self.others:
            return (self,)
        common = self.model_dump(exclude={"others"}, exclude_unset=True)
        return tuple(self._service(common, n, other) for n, other in enumerate(({}, *self.others)))

    @staticmethod
    def _service(common: dict[str, Any], number: int, other: dict[str, Any]) -> ServiceSettings:
        said = common | other
        limits = said.get("rate_limit", {})
        if isinstance(limits, dict):
            said["rate_limit"] = {"wait_s": 0.0} | limits
        try:
            return ServiceSettings.model_validate(said)
        except ValidationError as error:
            raise ValueError(f"others[{number - 1}]: {explain(error, ServiceSettings)}") from None

    @model_validator(mode="after")
    def _others_fit(self) -> Self:
        services = self.services
        if any(service.others for service in services[1:]):
            raise ValueError("others: one of the others cannot have others")
        if len({service.tokenizer for service in services}) > 1:
            raise ValueError("others: all services of a pool have one tokenizer")
        if len({(service.base_url, service.model) for service in services}) < len(services):
            raise ValueError("others: one service is named twice")
        return self

    @property
    def places(self) -> int:
        """Sessions that a service takes at once, on average."""
        services = self.services
        return -(-sum(service.max_sessions for service in services) // len(services))

    @property
    def batch_limit(self) -> int:
        return self.places


class NullSettings(Strict):
    """The engine without a model, for tests and benchmarks of everything around an engine.

    kind: kind of engine.
    tokens_per_s: pace of a session; null for unlimited.
    mistake_every: every n-th draft is wrong; 0 for none.
    vocab_size, context: tokens.
    capacity: sessions.
    """

    kind: Literal["null"]
    tokens_per_s: float | None = Field(None, gt=0)
    mistake_every: int = Field(0, ge=0)
    vocab_size: int = Field(2048, ge=32)
    context: int = Field(512, ge=16)
    capacity: int = Field(1024, ge=1)

    @property
    def places(self) -> int:
        """Sessions that it holds at once."""
        return self.capacity

    @property
    def batch_limit(self) -> int:
        """Sessions that a step takes at most."""
        return self.capacity


ModelSettings = TorchSettings | VllmSettings | LlamacppSettings
"""Settings of engines that have a model in a folder."""
AnySettings = ModelSettings | ServiceSettings | NullSettings
EngineSettings = Annotated[AnySettings, Field(discriminator="kind")]


def build_engine(settings: AnySettings | MiddleSettings) -> Engine:
    """Load and start the engine; takes seconds for a torch engine, half a minute for vLLM. Raises FileNotFoundError,
    ValueError; a service is not asked."""
    try:
        return _build(settings)
    finally:
        give_back()


def _build(settings: AnySettings | MiddleSettings) -> Engine:
    if isinstance(settings, NullSettings):
        from tandem.engine.null.engine import NullEngine

        return NullEngine(**settings.model_dump(exclude={"kind"}))

    if isinstance(settings, ServiceSettings):
        from tandem.engine.service.engine import ServiceEngine

        if settings.others:
            raise ValueError("others: one engine asks one service; pools of the cloud have several")
        return ServiceEngine(settings, Tokenizer.load(model_folder(settings.tokenizer)))

    if settings.scheduling_warning is not None:
        logger.warning("%s", settings.scheduling_warning)
    if isinstance(settings, VllmSettings):
        from tandem.engine.vllm.engine import load as load_vllm

        folder = model_folder(settings.model)
        return load_vllm(folder, settings, threads=settings.threads, report=_log_loaded)

    if isinstance(settings, MiddleSettings):
        from tandem.engine.torch.split.runner import load_middle, load_pipeline

        folder, threads = model_folder(settings.model), settings.threads
        if settings.stages == 1:
            return load_middle(folder, settings.first, settings, threads=threads, report=_log_loaded)
        return load_pipeline(
            folder, settings.first, settings.stages, settings, threads=threads, report=_log_loaded
        )

    engine = _load_llamacpp(settings) if isinstance(settings, LlamacppSettings) else _load_torch(settings)
    if (latency := settings.latency) is not None:
        engine = Delayed(engine, LogNormal(median_s=latency.median_s, sigma=latency.sigma), latency.seed)
    return engine


def _load_torch(settings: TorchSettings) -> Engine:
    from tandem.engine.torch.engine import load  # imports torch: only where a model runs
    from tandem.engine.torch.layers.linear import choices

    engine = load(
        model_folder(settings.model),
        settings,
        dtype=settings.dtype,
        memory_fraction=settings.memory_fraction,
        grow=settings.grow,
        threads=settings.threads,
        report=_log_loaded,
    )
    for choice in choices:
        logger.info("%s", choice)
    return engine


def _load_llamacpp(settings: LlamacppSettings) -> Engine:
    LLAMACPP.require()
    from tandem.engine.llamacpp.engine import load

    folder = model_folder(settings.model)
    file, tokenizer = Path(read_config(folder, settings.kind)[GGUF_FILE]), Tokenizer.load(folder)
    return load(file, tokenizer, settings, threads=settings.threads, report=_log_loaded)


def _log_loaded(said: dict[str, object]) -> None:
    logger.info("loaded %s", " ".join(f"{name}={value}" for name, value in said.items()), extra=said)


def tokenizer_model(settings: AnySettings) -> str | None:
    """Return the model whose tokenizer an engine has; None for one to which any will do."""
    match settings:
        case NullSettings():
            return None
        case ServiceSettings():
            return settings.tokenizer
    return settings.model


def context_of(settings: AnySettings) -> int:
    """Tokens of prompt and output that model and KV cache can hold, without loading the model."""
    if isinstance(settings, NullSettings):
        return settings.context
    if isinstance(settings, ServiceSettings):
        return min(service.context for service in settings.services)
    config = json.loads((model_folder(settings.model) / "config.json").read_text(encoding="utf-8"))
    most = int(config["max_position_embeddings"])
    if isinstance(settings, TorchSettings) and settings.memory_fraction is not None:
        return most
    if not isinstance(settings, VllmSettings):
        return min(most, settings.kv_tokens)
    return min(limit for limit in (most, settings.longest, settings.kv_tokens) if limit is not None)
