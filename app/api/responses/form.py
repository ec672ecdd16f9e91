"""Requests of /v1/responses: a chat whose earlier turns the server may have kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from tandem.app.api.completions.schema import AnswerForm, ChatRequest, Message
from tandem.app.api.completions.structured import NamedSchema, ResponseFormat, Schema
from tandem.app.api.http.fields import drop_unused
from tandem.app.api.http.forms import StrictForm
from tandem.engine.base import Grammar

LOGPROBS = "message.output_text.logprobs"
"""The only thing that `include` may name."""
_TEXTS = ("input_text", "output_text", "text")


class ResponseChat(ChatRequest):
    """The chat that a response answers."""

    prompt_field: ClassVar[str] = "input"
    limit_field: ClassVar[str] = "max_output_tokens"

    def form(self) -> tuple[str, Grammar] | None:
        found = super().form()
        return None if found is None else ("text.format", found[1])


def _content(value: Any) -> Any:
    """Join an item's content if it is a list of text parts."""
    if not isinstance(value, list):
        return value
    for part in value:
        if (
            not isinstance(part, dict)
            or part.get("type") not in _TEXTS
            or not isinstance(part.get("text"), str)
        ):
            raise ValueError(
                'every part must be {"type": "input_text", "text": "…"}; other kinds are not supported'
            )
    return "".join(part["text"] for part in value)


def _input(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class InputMessage(StrictForm):
    """A message of the input, perhaps an output of an earlier response.

    content: text, or a list of text parts.
    id, status, phase: of an earlier output; without effect.
    """

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


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


class StreamForm(StrictForm):
    """Options of a stream.

    include_obfuscation: accepted as false alone.
    """

    include_obfuscation: Literal[False] = False


class ResponseForm(AnswerForm):
    """A request for a response.

    input: a text, or messages.
    instructions: text of a system message before all others; not kept for the next response.
    previous_response_id: response whose conversation goes on.
    store: whether to keep the response for a while.
    metadata: notes of the client's, kept with the response.
    include: "message.output_text.logprobs" for log-probabilities of the output.
    text: the form of the output.
    """

    model: str
    input: Annotated[list[InputMessage], BeforeValidator(_input)] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = Field(None, min_length=1, max_length=128)
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_logprobs: int = Field(0, ge=0, le=20)
    include: list[Literal["message.output_text.logprobs"]] = Field([])
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    text: TextForm = TextForm()
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
        if self.tandem.paced and not self.stream:
            raise ValueError("tandem.paced is only allowed where stream is true")
        return self

    def conversation(self, before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation so far, the input included. before: of the previous response."""
        return [*before, *({"role": each.role, "content": each.content} for each in self.input)]

    def chat(self, before: Sequence[dict[str, Any]]) -> ResponseChat:
        """Return the chat that the response answers."""
        told = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        asked: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("model", "temperature", "top_p", "seed", "stream", "tandem")
            if name in self.model_fields_set
        }
        asked["response_format"] = self.text.format.of_chat()
        if self.include:
            asked |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        messages = [Message(**message) for message in (*told, *self.conversation(before))]
        return ResponseChat(messages=messages, max_tokens=self.max_output_tokens, **asked)
