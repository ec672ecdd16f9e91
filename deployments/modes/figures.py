"""Figures of an answer by mode, typed: what a mode's name maps to is of that mode's kind of figures."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from tandem.deployments.modes import MODES
from tandem.deployments.request.job import Figures


class _ByMode:
    """Makes pydantic take a mapping for an object with an optional property per mode."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = {name: handler.generate_schema(mode.figures) for name, mode in MODES.items()}
        optional = {name: core_schema.typed_dict_field(kind, required=False) for name, kind in kinds.items()}
        return core_schema.typed_dict_schema(optional, extra_behavior="allow")


FiguresByMode = Annotated[dict[str, Figures], _ByMode()]
FIGURES = TypeAdapter[dict[str, Figures]](FiguresByMode)
"""Turns them into plain data, those included that are computed from others."""
