"""Groups of devices in a simulation: their models, speeds and links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tandem.cluster.devices.profile import load_profile
from tandem.deployments.config.settings import LinkSettings
from tandem.engine.config import Strict
from tandem.simulator import hardware
from tandem.simulator.hardware import DrafterKind, Ends, MeasuredEnds, MeasuredTimer, RateTimer, StepTimer


class DeviceModel(Strict):
    """A model on a device. Its speed is given by exactly one of: hardware and model, profile, rates, measured, table.

    hardware, model: names known to the hardware model ("A40", "Qwen-7B").
    profile: a profile of `cluster/configs`, as in the application's `hosts`.
    rates: prefill_tokens_per_s and decode_tokens_per_s.
    measured: step times of a live engine.
    table: file of such times, see `hardware.measured`.
    load_s: seconds to load the model in place of another; null: the profile's, else 0.
    """

    hardware: str | None = None
    model: str | None = None
    profile: str | None = None
    rates: RateTimer | None = None
    measured: MeasuredTimer | None = None
    table: str | None = None
    load_s: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _has_one_speed(self) -> DeviceModel:
        ways = (self.hardware or self.model, self.profile, self.rates, self.measured, self.table)
        if sum(way is not None for way in ways) != 1 or (self.hardware is None) != (self.model is None):
            raise ValueError(
                "a device needs either hardware and model, or profile, or rates, or measured, or table"
            )
        if self.hardware is not None and self.model is not None:
            hardware.check(self.hardware, self.model)
        if self.profile is not None:
            RateTimer.of(load_profile(self.profile))
        if self.table is not None:
            hardware.table(self.table)
        return self

    def timer(self, data: Path | None) -> StepTimer:
        """Step times of the model."""
        if self.profile is not None:
            return RateTimer.of(load_profile(self.profile))
        if self.hardware is not None and self.model is not None:
            return hardware.timer(self.hardware, self.model, data)
        timer = hardware.table(self.table) if self.table is not None else self.rates or self.measured
        assert timer is not None
        return timer

    @property
    def loading_s(self) -> float:
        """Seconds to load the model."""
        if self.load_s is None and self.profile is not None:
            return load_profile(self.profile).load_s
        return self.load_s or 0.0


class DeviceGroup(DeviceModel):
    """Identical devices.

    count: number of devices.
    sessions: requests that each serves at a time; null: the profile's, else 1.
    batch: sequences that each decodes at once; null: the profile's, else 1.
    others: further models on each; this one is loaded at the start.
    ends: step times of a split model's two ends; null: from hardware and model, without which there are none.
    speed_trace: varying speed of the two ends, as [[second, share of their speed], …] from second 0 on.
    link: between the device and the cloud.
    power_w: power while computing, watts; null: the profile's, else 0.
    """

    count: int = Field(1, ge=1)
    sessions: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1)
    others: tuple[DeviceModel, ...] = ()
    ends: MeasuredEnds | None = None
    speed_trace: tuple[tuple[float, Annotated[float, Field(gt=0)]], ...] = ()
    link: LinkSettings = LinkSettings()
    power_w: float | None = Field(None, ge=0)

    @field_validator("speed_trace")
    @classmethod
    def _begins_at_0(cls, trace: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        times = [time_s for time_s, _ in trace]
        if trace and (times[0] != 0 or times != sorted(times)):
            raise ValueError("a trace begins at second 0 and goes on in order")
        return trace

    def split_ends(self, first: int, drafter: DrafterKind, data: Path | None) -> Ends | None:
        """Step times of the two ends of a model split after `first` layers; None if the device has no ends."""
        if self.ends is not None:
            return self.ends.ends(drafter)
        if self.hardware is None or self.model is None:
            return None
        return hardware.ends(self.hardware, self.model, first, drafter, data)

    @property
    def models(self) -> tuple[DeviceModel, ...]:
        """All models on each device, the one loaded at the start first."""
        return (self, *self.others)

    @property
    def capacity(self) -> int:
        """Requests that each serves at a time."""
        if self.sessions is None and self.profile is not None:
            return load_profile(self.profile).sessions
        return self.sessions or 1

    @property
    def batch_limit(self) -> int:
        """Sequences that each decodes at once."""
        if self.batch is None and self.profile is not None:
            return load_profile(self.profile).batch
        return self.batch or 1

    @property
    def watts(self) -> float:
        """Power while computing."""
        if self.power_w is None and self.profile is not None:
            return load_profile(self.profile).power_w
        return self.power_w or 0.0
