"""Checks of a Serve YAML, and of the settings in it, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve._private.build_app import build_app
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, GangSchedulingConfig, RequestRouterConfig
from ray.serve.schema import RayActorOptionsSchema, ServeApplicationSchema, ServeDeploySchema

from tandem.app.main import LIVE, application
from tandem.app.settings import Settings
from tandem.app.vocabularies import vocabularies
from tandem.deployments.config.explain import explain, no_such
from tandem.deployments.pools.engines import (
    EngineSettings,
    MiddleSettings,
    NullSettings,
    ServiceSettings,
    VllmSettings,
)
from tandem.deployments.pools.models import model_folder, require
from tandem.engine.packages import PackageMissing
from tandem.engine.service.request import RequestWriter
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.vllm.config import adapter_rank, check_options

M = TypeVar("M", bound=BaseModel)

IMPORT_PATH = "tandem.app.main:build"
"""Tandem's, in a Serve YAML."""
UNCHECKED: dict[str, type[BaseModel]] = {
    "autoscaling_config": AutoscalingConfig,
    "gang_scheduling_config": GangSchedulingConfig,
    "request_router_config": RequestRouterConfig,
}
"""Parts of a deployment that Serve's schema accepts as any mapping, and their later types."""


def check_serve_yaml(content: Any) -> list[Settings]:
    """Return the settings of each Tandem in a Serve YAML. All of it is checked, since Serve ignores unknown keys.

    Raises ValueError with the place and the reason.
    """
    found = []
    for each in _valid(ServeDeploySchema, content).applications:
        ours = each.import_path == IMPORT_PATH
        if ours:
            settings = _valid(Settings, each.args, "args: ")
            try:
                check(settings)
                names = [part.name for part in build_app(application(settings), name="tandem").deployments]
            except ValueError as error:
                raise ValueError(f"args: {error}") from None
            found.append(settings)
        for deployment in each.deployments:
            parts = UNCHECKED
            if ours:
                if deployment.name not in names:
                    raise ValueError(f"deployments: {no_such('deployment', deployment.name, names)}")
                if deployment.name in LIVE:
                    parts = UNCHECKED | {"user_config": LIVE[deployment.name]}
            for part, kind in parts.items():
                if isinstance(given := getattr(deployment, part), dict):
                    _valid(kind, given, f"{deployment.name}.{part}: ")
        for where, mapping, allowed in _mappings(each):
            if unknown := sorted(mapping.keys() - allowed):
                raise ValueError(f"{where}: {no_such('key', unknown[0], sorted(allowed))}")
    if not found:
        raise ValueError(f"no application has the import_path {IMPORT_PATH}")
    return found


def _mappings(application: ServeApplicationSchema) -> Iterator[tuple[str, dict[str, Any], Collection[str]]]:
    """Yield the places of mappings that Serve's types do not check, the mappings, and the keys that they may have.
    pydantic's `extra` does not reach types that have an `__init__` of their own."""
    environment = {name for name in RuntimeEnv.known_fields if not name.startswith("_")}
    policy, router = AutoscalingPolicy.model_fields.keys(), RequestRouterConfig.model_fields.keys()
    yield "runtime_env", application.runtime_env, environment
    yield "autoscaling_policy", application.autoscaling_policy or {}, policy
    for deployment in application.deployments:
        if isinstance(actor := deployment.ray_actor_options, RayActorOptionsSchema):
            yield f"{deployment.name}.ray_actor_options.runtime_env", actor.runtime_env, environment
        if isinstance(scaling := deployment.autoscaling_config, dict):
            yield f"{deployment.name}.autoscaling_config.policy", scaling.get("policy") or {}, policy
        if isinstance(routing := deployment.request_router_config, dict):
            yield f"{deployment.name}.request_router_config", routing, router


def _valid(kind: type[M], content: Any, where: str = "") -> M:
    try:
        return kind.model_validate(content, extra="forbid")
    except ValidationError as error:
        raise ValueError(f"{where}{explain(error, kind)}") from None


def check(settings: Settings) -> None:
    """Raises ValueError, whose message says where and what, if a model, its tokenizer, a certificate or the
    ledger's folder is of no use."""
    for where, engine in _engines(settings):
        if isinstance(engine, NullSettings):
            continue
        if isinstance(engine, ServiceSettings):
            _check_service(where, engine)
            continue
        try:
            config = require(engine.model, engine.kind)
        except PackageMissing as error:
            raise ValueError(f"{where}.engine: {error}") from None
        except (ValueError, OSError) as error:
            raise ValueError(f"{where}.engine.model: {error}") from None
        if isinstance(engine, MiddleSettings):
            _check_middle(where, engine, config["num_hidden_layers"])
    for where, engine in _engines(settings):
        if isinstance(engine, VllmSettings):
            _check_vllm(where, engine)
    folder = settings.ledger.path and settings.ledger.path.expanduser().parent
    if folder and not folder.is_dir():
        raise ValueError(f"ledger.path: there is no folder {folder}")
    for where, context in _certificates(settings):
        try:
            context()
        except (ValueError, OSError) as error:
            raise ValueError(f"{where}: {error}") from None
    try:
        vocabularies(settings)
    except (ValueError, OSError) as error:
        raise ValueError(f"tokenizer: {error}") from None


def _certificates(settings: Settings) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the places of certificates in the settings, and what fails where their files are of no use."""
    if settings.endpoint.tls is not None:
        yield "endpoint.tls", settings.endpoint.tls.contexts
    if settings.gateway is not None and settings.gateway.tls is not None:
        yield "gateway.tls", settings.gateway.tls.context
    if settings.api.tls is not None:
        yield "api.tls", settings.api.tls.context


def _check_middle(where: str, engine: MiddleSettings, layers: int) -> None:
    if engine.first >= layers:
        raise ValueError(
            f"{where}.engine.first: of {layers} layers, devices can have 1 to {layers - 1}, not {engine.first}"
        )
    if engine.stages > layers - engine.first:
        raise ValueError(
            f"{where}.engine.stages: {layers - engine.first} layers cannot be {engine.stages} stages"
        )


def _check_service(where: str, engine: ServiceSettings) -> None:
    """Ask nothing of the service: it may be down at the moment."""
    if engine.others and where.startswith("hosts"):
        raise ValueError(f"{where}.engine.others: a device asks one service; pools of the cloud have several")
    try:
        for service in engine.services:
            service.key()
    except ValueError as error:
        raise ValueError(f"{where}.engine.{error}") from None
    try:
        tokenizer = Tokenizer.load(model_folder(engine.tokenizer))
        for service in engine.services:
            RequestWriter(service, tokenizer)
    except (ValueError, OSError) as error:
        raise ValueError(f"{where}.engine.tokenizer: {error}") from None


def _check_vllm(where: str, engine: VllmSettings) -> None:
    """Import vLLM for options, which takes seconds and forbids asking a hub from then on."""
    for name, folder in engine.adapters.items():
        try:
            adapter_rank(folder)
        except ValueError as error:
            raise ValueError(f"{where}.engine.adapters.{name}: {error}") from None
    try:
        if engine.options:
            check_options(engine.options)
    except ValueError as error:
        raise ValueError(f"{where}.engine: {error}") from None


def _engines(settings: Settings) -> Iterator[tuple[str, EngineSettings | MiddleSettings]]:
    """Yield the engines that will run, and their place in the settings."""
    for where, pool in settings.placed_pools():
        yield where, pool.engine
    for number, host in enumerate(settings.hosts):
        for engine in host.engines:
            yield f"hosts[{number}]", engine
