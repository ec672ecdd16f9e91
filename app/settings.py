"""The settings of the application: what `args:` of the Serve YAML may say, and what it means."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from deployments.edge import HostSettings
from deployments.endpoint import EndpointSettings
from deployments.engines import EngineSettings, TorchSettings
from deployments.racing import RacingSettings
from deployments.router import RouterSettings
from deployments.scheduler import SchedulerSettings
from deployments.settings import PolicyChoice, Strict
from policies.window import window


class PoolSettings(Strict):
    """A pool of replicas that serve one engine each. replicas: 0 leaves the pool empty; cpus: what Ray
    sets aside for a replica (its real use is up to its threads)."""

    replicas: int = Field(1, ge=0, le=1000)
    cpus: float = Field(0.1, ge=0)
    engine: EngineSettings = TorchSettings(model="small")


class LimitSettings(Strict):
    """Time limits of a request, seconds, and how often it may go on elsewhere after losing an endpoint.

    connect_s, open_s: to reach an endpoint and be admitted; first_s: for its first answer, prefill and
    queue included; step_s: for each later one; assign_s: for the router's assignment.
    """

    connect_s: float = Field(5.0, gt=0)
    open_s: float = Field(15.0, gt=0)
    first_s: float = Field(120.0, gt=0)
    step_s: float = Field(30.0, gt=0)
    assign_s: float = Field(60.0, gt=0)
    replans: int = Field(4, ge=0)


class Settings(Strict):
    """Arguments of `app.main:build`.

    model: the name by which clients ask for the model; tokenizer: the family model or folder whose
    tokenizer turns text into the target's tokens; window: the policy that chooses γ; racing: policies, prices and
    budgets of races; default_reader_rate:
    tokens/s that a chat's reader takes in where the client does not say (0: nobody reads along).
    """

    model: str = "tandem"
    tokenizer: str = "target"
    ingress_replicas: int = Field(1, ge=1)
    default_reader_rate: float = Field(5.0, ge=0, le=10_000, allow_inf_nan=False)
    verifier: PoolSettings = PoolSettings(engine=TorchSettings(model="target"))
    drafter: PoolSettings = PoolSettings()
    expander: PoolSettings = PoolSettings()
    hosts: tuple[HostSettings, ...] = ()
    router: RouterSettings = RouterSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    racing: RacingSettings = RacingSettings()
    window: PolicyChoice = PolicyChoice(name="static", parameters={"size": 4})
    limits: LimitSettings = LimitSettings()
    endpoint: EndpointSettings = EndpointSettings()

    @field_validator("window")
    @classmethod
    def _window_exists(cls, choice: PolicyChoice) -> PolicyChoice:
        choice.create(window)
        return choice

    @model_validator(mode="after")
    def _names_differ(self) -> Settings:
        for what, names in (
            ("device", [d.name for host in self.hosts for d in host.devices]),
            ("host", [host.name for host in self.hosts]),
        ):
            if twice := {name for name in names if names.count(name) > 1}:
                raise ValueError(f"hosts: {what} names must differ, but {sorted(twice)} occur twice")
        return self


if __name__ == "__main__":
    import yaml

    print(f"# {Settings.__doc__}".replace("\n", "\n# ").rstrip("# \n"))
    print(yaml.safe_dump(Settings().model_dump(mode="json"), sort_keys=False), end="")
