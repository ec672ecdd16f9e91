"""Requests of /v1/responses: a chat whose earlier turns the server may have kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tandem.app.api.completions.schema import AnswerForm, ChatRequest, Message
from tandem.app.api.http.fields import drop_unused
from tandem.app.api.http.forms import StrictForm
from tandem.app.api.responses.items import Item, messages
from tandem.app.api.structured.forms import NamedSchema, ResponseFormat, Schema
from tandem.app.api.tools.forms import MOST, Choice, FunctionForm, NamedFunction, Tool
from tandem.engine.base import Grammar


class ResponseChat(ChatRequest):
    """The chat that a response answers."""

    prompt_field: ClassVar[str] = "input"
    limit_field: ClassVar[str] = "max_output_tokens"
    effort_field: ClassVar[str] = "reasoning.effort"

    def form(self) -> tuple[str, Grammar] | None:
        found = super().form()
        return None if found is None else ("text.format", found[1])


def _input(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class _OfFunctions(StrictForm):
    type: Literal["function"]


class FunctionTool(FunctionForm, _OfFunctions):
    """A function that the model may call."""

    def of_chat(self) -> Tool:
        """Return the same tool in a chat's words."""
        return Tool(type="function", function=FunctionForm(**self.model_dump(exclude={"type"})))


def _by_type(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class FunctionChoice(StrictForm):
    """Whether the model calls functions.

    type: "none", "auto" for as it sees fit, "required" for at least one, or "function" for the named one.
    name: of the named one.
    """

    type: Literal["none", "auto", "required", "function"]
    name: str | None = None

    @model_validator(mode="after")
    def _has_its_name(self) -> FunctionChoice:
        if (self.type == "function") != (self.name is not None):
            raise ValueError('must be "none", "auto", "required" or {"type": "function", "name": "…"}')
        return self

    def of_chat(self) -> Choice:
        """Return the same choice in a chat's words."""
        return Choice(type=self.type, function=None if self.name is None else NamedFunction(name=self.name))

    def shown(self) -> str | dict[str, str]:
        """Return it as the response repeats it."""
        return self.type if self.name is None else {"type": self.type, "name": self.name}


class FormatForm(StrictForm):
    """The form of the output, as `response_format` of a chat, in one object.

    type: "text" for any text, "json_object" for any JSON object, or "json_schema".
    name, description, schema, strict: of the last kind, as in `NamedSchema`.
    """

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _is_a_form(self) -> FormatForm:
        self.of_chat()
        return self

    def of_chat(self) -> ResponseFormat:
        """Return the same form in a chat's words."""
        named = self.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
        return ResponseFormat(type=self.type, json_schema=NamedSchema(**named) if named else None)


class TextForm(StrictForm):
    """Wishes for the text of the output."""

    format: FormatForm = FormatForm()

    def shown(self) -> dict[str, Any]:
        """Return them as the response repeats them, once they are known to be right."""
        given = self.format.model_dump(by_alias=True, exclude_none=True)
        return {"format": given | ({"schema": json.loads(given["schema"])} if "schema" in given else {})}


class ReasoningForm(StrictForm):
    """Wishes for what the model thinks. effort: how much; for models whose chat template reads it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class StreamForm(StrictForm):
    """Options of a stream.

    include_obfuscation: accepted as false alone.
    """

    include_obfuscation: Literal[False] = False


class ResponseForm(AnswerForm):
    """A request for a response.

    input: a text, or items.
    instructions: text of a system message before all others; not kept for the next response.
    previous_response_id: response whose conversation goes on.
    store: whether to keep the response for a while.
    metadata: notes of the client's, kept with the response.
    include: "message.output_text.logprobs" for log-probabilities of the output.
    text: the form of the output.
    reasoning: how much the model thinks.
    tools: functions that the model may call.
    tool_choice: whether it calls them, and which.
    parallel_tool_calls: whether it may call several at once.
    """

    model: str
    input: Annotated[list[Item], BeforeValidator(_input)] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = Field(None, min_length=1, max_length=128)
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_logprobs: int = Field(0, ge=0, le=20)
    include: list[Literal["message.output_text.logprobs"]] = Field([])
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    text: TextForm = TextForm()
    reasoning: ReasoningForm = ReasoningForm()
    tools: list[FunctionTool] = Field([], max_length=MOST)
    tool_choice: Annotated[FunctionChoice, BeforeValidator(_by_type)] = FunctionChoice(type="auto")
    parallel_tool_calls: bool = True
    stream: bool = False
    stream_options: StreamForm | None = None
    store: bool = True
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        {}, max_length=16
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        return drop_unused(data, cls.model_fields) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options_belong_to_streams(self) -> ResponseForm:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is only allowed where stream is true")
        self.tandem.check(self.stream)
        return self

    def chat(self, before: Sequence[Item]) -> ResponseChat:
        """Return the chat that the response answers. before: conversation of the previous response."""
        told = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        asked: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "model",
                "temperature",
                "top_p",
                "seed",
                "stream",
                "tandem",
                "parallel_tool_calls",
                "priority",
            )
            if name in self.model_fields_set
        }
        asked["response_format"] = self.text.format.of_chat()
        if self.include:
            asked |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return ResponseChat(
            messages=[*told, *messages((*before, *self.input))],
            max_tokens=self.max_output_tokens,
            tools=[tool.of_chat() for tool in self.tools],
            tool_choice=self.tool_choice.of_chat(),
            reasoning_effort=self.reasoning.effort,
            **asked,
        )
