"""Settings of the application: `args:` of the Serve YAML, and their meanings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.config.settings import (
    AccountSettings,
    GateSettings,
    LedgerSettings,
    LimitSettings,
    RouterSettings,
)
from tandem.deployments.gateway.deployment import GatewaySettings
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.sections import with_sections
from tandem.deployments.pools.autoscaling import AutoscalingSettings
from tandem.deployments.pools.device_hosts import HostSettings
from tandem.deployments.pools.engines import (
    AnySettings,
    EngineSettings,
    MiddleSettings,
    TorchSettings,
    VllmSettings,
    tokenizer_model,
)
from tandem.deployments.pools.replica import EndpointSettings
from tandem.deployments.request.pools import POOLS, VERIFIER
from tandem.deployments.routing.readiness import Planned
from tandem.engine.config import Priced, Strict

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
"""Not to be part of a deployment's name, which is a file's, too."""


class Pool(Strict):
    """A pool of replicas that serve one engine each.

    replicas: number of replicas; 0 leaves the pool empty; null: one, or what `autoscaling` decides. With both, a pool
        begins with this number, again after every new version.
    autoscaling: bounds of a pool that follows its load; null for a fixed size.
    cpus: cores that Ray reserves for a replica (its threads determine its real use).
    gpus: GPUs that Ray reserves for a replica, which sees no others.
    surge_percent: further replicas during an update, as a share of `replicas`; with 0, which needs no additional
        resources, a replica ends before its successor starts, and a pool of one is empty meanwhile.
    """

    replicas: int | None = Field(None, ge=0, le=1000)
    autoscaling: AutoscalingSettings | None = None
    cpus: float = Field(0.1, ge=0)
    gpus: float = Field(0.0, ge=0)
    surge_percent: int = Field(100, ge=0, le=100)

    @property
    def exists(self) -> bool:
        """Whether there is ever a replica."""
        return self.replicas != 0 or self.autoscaling is not None

    @property
    def may_be_empty(self) -> bool:
        """Whether there need not be one now."""
        return self.autoscaling is not None and self.autoscaling.min_replicas == 0

    @model_validator(mode="after")
    def _begins_within_bounds(self) -> Self:
        bounds = self.autoscaling
        if bounds is None or self.replicas is None:
            return self
        if not bounds.min_replicas <= self.replicas <= bounds.max_replicas:
            raise ValueError(
                f"replicas must be from min_replicas to max_replicas, {bounds.min_replicas} to "
                f"{bounds.max_replicas}, not {self.replicas}"
            )
        return self


class PoolSettings(Pool):
    """Pool of a whole model."""

    engine: EngineSettings = TorchSettings(model="small")


class MiddlePool(Pool):
    """Pool of the layers between of a split model; the rest as in Pool."""

    replicas: int | None = Field(0, ge=0, le=1000)
    engine: MiddleSettings = MiddleSettings()


AnyPool = PoolSettings | MiddlePool
AnyEngine = AnySettings | MiddleSettings


class ModelSettings(Strict):
    """A model and its pools.

    aliases: further names of it for clients, such as those that their programs are fixed to.
    tokenizer: model with the target's tokenizer, by name, folder or GGUF file; null: the verifier's.
    verifier, drafter, expander: the pools.
    middle: the pool of mode split.
    """

    aliases: tuple[str, ...] = ()
    tokenizer: str | None = None
    verifier: PoolSettings = PoolSettings(engine=TorchSettings(model="target"))
    drafter: PoolSettings = PoolSettings()
    expander: PoolSettings = PoolSettings(replicas=0)
    middle: MiddlePool = MiddlePool()

    @property
    def pools(self) -> dict[str, AnyPool]:
        """Return the pools that ever have a replica, by name."""
        pools: dict[str, AnyPool] = {pool: getattr(self, pool) for pool in POOLS}
        return {name: pool for name, pool in pools.items() if pool.exists}

    @property
    def adapters(self) -> Mapping[str, str]:
        """Return the folders of the verifier's adapters by name."""
        engine = self.verifier.engine
        return engine.adapters if isinstance(engine, VllmSettings) else {}

    @property
    def text_model(self) -> str:
        """The model whose tokenizer turns text into tokens."""
        if self.tokenizer is not None:
            return self.tokenizer
        return tokenizer_model(self.verifier.engine) or "target"


class NamedModelSettings(Priced, ModelSettings):
    """One of several models: ModelSettings, and prices of its own."""


@with_sections(AT_FRONT_DOORS.values())
class Settings(ModelSettings):
    """Arguments of `tandem.app.main:build`, the settings of the modes among them.

    model: name of the model for clients.
    models: several models behind one address, by their names for clients; each has pools of its own. In place of
        `model` and the pools above, which are those of one model alone.
    ingress_replicas: number of replicas of the API.
    default_reader_rate: tokens/s that a streamed chat's reader consumes if the client does not say (0: no reader).
    gateway: endpoint for devices that are programs of their own (`tandem device`); null: none.
    accounts: prices, and the limits of new accounts.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # there is a token among it

    model: str = "tandem"
    models: dict[str, NamedModelSettings] = Field(default_factory=dict)
    ingress_replicas: int = Field(2, ge=1)
    default_reader_rate: float = Field(5.0, ge=0, le=10_000, allow_inf_nan=False)
    hosts: tuple[HostSettings, ...] = ()
    router: RouterSettings = RouterSettings()
    accounts: AccountSettings = AccountSettings()
    limits: LimitSettings = LimitSettings()
    api: ApiSettings = ApiSettings()
    gate: GateSettings = GateSettings()
    ledger: LedgerSettings = LedgerSettings()
    endpoint: EndpointSettings = EndpointSettings()
    gateway: GatewaySettings | None = None

    @property
    def served(self) -> dict[str, ModelSettings]:
        """Return the models by their names for clients, the first one first."""
        return {**self.models} or {self.model: self}

    def placed_pools(self) -> Iterator[tuple[str, AnyPool]]:
        """Yield all models' pools that ever have a replica, and their places in the settings."""
        for name, model in self.served.items():
            where = f"models.{name}." if self.models else ""
            for pool, settings in model.pools.items():
                yield f"{where}{pool}", settings

    def engine(self, pool: str, model: ModelSettings) -> AnyEngine:
        """Return the settings of a pool's engine. vLLM needs no speculator where nothing drafts for the pool."""
        engine: AnyEngine = model.pools[pool].engine
        drafts = pool == VERIFIER and (model.drafter.exists or self.hosts or self.gateway is not None)
        if isinstance(engine, VllmSettings) and engine.window is None and not drafts:
            return engine.model_copy(update={"window": 0})
        return engine

    def suffix(self, model: str) -> str:
        """Return the end of the names of that model's pools: "" for the first model."""
        return "" if model == next(iter(self.served)) else _NO_NAME.sub("-", model)

    def planned(self, model: str) -> Planned:
        """Return the endpoints that are asked for on behalf of that model."""
        others = [host for host in self.hosts if host.serves and model not in host.serves]
        return Planned(
            self.suffix(model),
            {pool: settings.may_be_empty for pool, settings in self.served[model].pools.items()},
            len(others) < len(self.hosts) or self.gateway is not None,
            frozenset(device.name for host in others for device in host.devices),
        )

    @model_validator(mode="after")
    def _one_or_several(self) -> Settings:
        if not self.models:
            return self
        alone = sorted(self.model_fields_set & {"model", *ModelSettings.model_fields})
        if alone:
            raise ValueError(
                f"models: each has a {alone[0]} of its own, and beside `models` there is no other"
            )
        pools = Counter(self.suffix(name) for name in self.models)
        for name in self.models:
            if pools[self.suffix(name)] > 1:
                raise ValueError(
                    f"models: the pools of {name!r} and of another one would have the same names"
                )
        return self

    @model_validator(mode="after")
    def _names_are_clear(self) -> Settings:
        models = self.served.values()
        more = [name for model in models for name in (*model.aliases, *model.adapters)]
        if twice := sorted(name for name, times in Counter([*self.served, *more]).items() if times > 1):
            raise ValueError(f"models: {', '.join(twice)}: a name, alias or adapter can mean only one model")
        asked = [(f"hosts: {host.name}: serves", name) for host in self.hosts for name in host.serves]
        if self.gateway is not None and self.gateway.model is not None:
            asked.append(("gateway.model", self.gateway.model))
        for where, name in asked:
            if name not in self.served:
                raise ValueError(f"{where}: there is no model {name!r}, but {', '.join(self.served)}")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        for what, names in (
            ("device", [d.name for host in self.hosts for d in host.devices]),
            ("host", [host.name for host in self.hosts]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"hosts: {what} names must differ, but {sorted(twice)} occur twice")
        return self
