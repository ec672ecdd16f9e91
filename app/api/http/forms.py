"""Base of the requests' forms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from tandem.deployments.docstrings import describe


class StrictForm(BaseModel):
    """A form in which null means "not given" and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, json_schema_extra=describe)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data
