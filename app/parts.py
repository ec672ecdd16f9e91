"""A model that takes part in answers, as clients see it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tandem.app.api.http.backend import ModelPart
from tandem.deployments.pools.engines import AnySettings, MiddleSettings, NullSettings, ServiceSettings
from tandem.deployments.pools.models import on_disk

Role = Literal["target", "drafter", "expander", "device"]


def part(role: Role, engine: AnySettings | MiddleSettings, devices: tuple[str, ...] = ()) -> ModelPart:
    """Return a part, with what this machine's disk says of its model."""
    match engine:
        case NullSettings():
            return ModelPart(role=role, model="null", devices=devices)
        case ServiceSettings():
            return ModelPart(role=role, model=engine.model, devices=devices)
    found = on_disk(engine.model)
    if found is None:  # a path of this machine's is nobody else's business
        name = Path(engine.model).stem if Path(engine.model).is_absolute() else engine.model
        return ModelPart(role=role, model=name, devices=devices)
    return ModelPart(
        role=role,
        model=found.name,
        parameters=found.parameters,
        bytes=found.bytes,
        demo=found.embedded,
        devices=devices,
    )
