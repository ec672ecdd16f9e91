"""What can be found wrong with an application before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.app.settings import Settings
from tandem.app.vocabularies import Vocabularies
from tandem.deployments.modes.base import POOLS
from tandem.deployments.pools.engines import (
    EngineSettings,
    MiddleSettings,
    ModelSettings,
    VllmSettings,
    model_folder,
)
from tandem.engine import vllm
from tandem.engine.model_folder import ARCHITECTURES, read_config
from tandem.engine.vllm.config import check_options


def check(settings: Settings) -> None:
    """Raises ValueError, whose message says where and what, if a model, its tokenizer or a certificate is of no use."""
    for where, engine in _engines(settings):
        if isinstance(engine, VllmSettings):
            _check_vllm(where, engine)
        if isinstance(engine, ModelSettings | MiddleSettings):
            architectures = None if isinstance(engine, VllmSettings) else ARCHITECTURES
            try:
                config = read_config(model_folder(engine.model), architectures)
            except (ValueError, OSError) as error:
                raise ValueError(f"{where}.engine.model: {error}") from None
            if isinstance(engine, MiddleSettings):
                _check_middle(where, engine, config["num_hidden_layers"])
    if settings.endpoint.tls is not None:
        try:
            settings.endpoint.tls.contexts()
        except (ValueError, OSError) as error:
            raise ValueError(f"endpoint.tls: {error}") from None
    try:
        Vocabularies(settings)
    except (ValueError, OSError) as error:
        raise ValueError(f"tokenizer: {error}") from None


def _check_middle(where: str, engine: MiddleSettings, layers: int) -> None:
    if engine.first >= layers:
        raise ValueError(
            f"{where}.engine.first: of {layers} layers, devices can have 1 to {layers - 1}, not {engine.first}"
        )
    if engine.stages > layers - engine.first:
        raise ValueError(
            f"{where}.engine.stages: {layers - engine.first} layers cannot be {engine.stages} stages"
        )


def _check_vllm(where: str, engine: VllmSettings) -> None:
    try:
        vllm.require()
        if engine.options:  # vLLM takes seconds to import
            check_options(engine.options)
    except ValueError as error:
        raise ValueError(f"{where}.engine: {error}") from None


def _engines(settings: Settings) -> Iterator[tuple[str, EngineSettings | MiddleSettings]]:
    """Those that will run, and where the settings have them."""
    for pool in POOLS:
        of_pool = getattr(settings, pool)
        if of_pool.exists:
            yield pool, of_pool.engine
    for number, host in enumerate(settings.hosts):
        for engine in host.engines:
            yield f"hosts[{number}]", engine
