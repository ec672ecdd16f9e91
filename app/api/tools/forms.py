"""The request's fields about tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tandem.app.api.http.forms import StrictForm

MOST = 128
"""Tools of a request."""


class FunctionForm(StrictForm):
    """A function that the model may call.

    name: of the function.
    description: when and how to call it, for the model.
    parameters: JSON schema of its arguments, an object's.
    strict: whether every call's arguments follow the schema, also where the model chooses whether to call.
    """

    name: str = Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] = Field({"type": "object", "properties": {}})
    strict: bool = False


class Tool(StrictForm):
    type: Literal["function"]
    function: FunctionForm

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": function}


class NamedFunction(StrictForm):
    name: str


class ChosenTool(StrictForm):
    """The tool that the model has to call."""

    type: Literal["function"]
    function: NamedFunction


def _by_name(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class Choice(StrictForm):
    """Whether the model calls tools.

    type: "none", "auto" for as it sees fit, "required" for at least one, or "function" for the named one.
    function: the named one.
    """

    type: Literal["none", "auto", "required", "function"]
    function: NamedFunction | None = None

    @model_validator(mode="after")
    def _has_its_function(self) -> Self:
        if (self.type == "function") != (self.function is not None):
            raise ValueError(
                'must be "none", "auto", "required" or {"type": "function", "function": {"name": "…"}}'
            )
        return self


ToolChoice = Annotated[
    Choice,
    BeforeValidator(_by_name, json_schema_input_type=Literal["none", "auto", "required"] | ChosenTool),
]
