"""Items of a conversation: messages, what a model thought, its calls of functions and their outputs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter

from tandem.app.api.completions.schema import FunctionCall, Message, ToolCall
from tandem.app.api.http.errors import ApiError
from tandem.app.api.http.forms import StrictForm

Status = Literal["in_progress", "completed", "incomplete"]
_TEXTS = ("input_text", "output_text", "text")


def _text(value: Any) -> Any:
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


Text = Annotated[str, BeforeValidator(_text)]
"""A text, or a list of text parts."""


class InputMessage(StrictForm):
    """A message, perhaps an output of an earlier response.

    content: text, or a list of text parts.
    id, status, phase: of an earlier output; without effect.
    """

    prefix: ClassVar[str] = "msg_"

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class ReasoningText(StrictForm):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class InputReasoning(StrictForm):
    """Thoughts of a model before its message or its calls, which chat templates may show it again.

    content: the thoughts.
    id, status, summary: of an earlier output; without effect.
    """

    prefix: ClassVar[str] = "rs_"

    type: Literal["reasoning"]
    content: list[ReasoningText] = Field([])
    id: str | None = None
    status: Status | None = None
    summary: list[Any] = Field([])


class InputCall(StrictForm):
    """A model's call of a function.

    call_id: id by which an output names the call.
    arguments: JSON object, as text.
    id, status: of an earlier output; without effect.
    """

    prefix: ClassVar[str] = "fc_"

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class CallOutput(StrictForm):
    """Output of a function that the model has called.

    call_id: of the call.
    output: text, or a list of text parts.
    id, status: without effect.
    """

    prefix: ClassVar[str] = "fco_"

    type: Literal["function_call_output"]
    call_id: str
    output: Text
    id: str | None = None
    status: Status | None = None


def _tag(value: Any) -> str:
    """Return the tag of an item's class, in brackets, as errors do not show it then."""
    kind = (value.get("type") if isinstance(value, dict) else getattr(value, "type", None)) or "message"
    return f"[{kind}]"


Item = Annotated[
    Annotated[InputMessage, Tag("[message]")]
    | Annotated[InputReasoning, Tag("[reasoning]")]
    | Annotated[InputCall, Tag("[function_call]")]
    | Annotated[CallOutput, Tag("[function_call_output]")],
    Discriminator(
        _tag,
        custom_error_type="unknown_item",
        custom_error_message='an item is a "message", "reasoning", "function_call" or "function_call_output"',
    ),
]

_items: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def parsed(items: Sequence[dict[str, Any]]) -> list[Item]:
    """Return items that were kept as JSON."""
    return _items.validate_python(items)


def shown(item: Item) -> dict[str, Any]:
    """Return an item as the API shows it: with an id, a status, and content in parts."""
    fields = item.model_dump(exclude_none=True)
    fields.setdefault("id", item.prefix + secrets.token_hex(16))
    fields.setdefault("status", "completed")
    if isinstance(item, InputMessage):
        said = item.role == "assistant"
        part = {"type": "output_text" if said else "input_text", "text": item.content}
        fields["content"] = [part | ({"annotations": [], "logprobs": []} if said else {})]
    return fields


def messages(items: Iterable[Item]) -> list[Message]:
    """Return a conversation as a chat's messages. What a model thought, said and called in one turn is one message.

    Raises ApiError for an output without its call.
    """
    chat: list[dict[str, Any]] = []
    called = set[str]()
    for item in items:
        turn = chat[-1] if chat and chat[-1]["role"] == "assistant" else None
        match item:
            case CallOutput():
                if item.call_id not in called:
                    raise _no_such_call(item.call_id)
                chat.append({"role": "tool", "tool_call_id": item.call_id, "content": item.output})
            case InputCall():
                called.add(item.call_id)
                turn = turn or _began(chat)
                function = FunctionCall(name=item.name, arguments=item.arguments)
                turn.setdefault("tool_calls", []).append(ToolCall(id=item.call_id, function=function))
            case InputReasoning():
                _began(chat)["reasoning_content"] = "".join(part.text for part in item.content)
            case InputMessage(role="assistant"):
                goes_on = turn is not None and (not turn["content"] or "tool_calls" in turn)
                turn = turn if turn is not None and goes_on else _began(chat)
                turn["content"] += item.content
            case InputMessage():
                chat.append({"role": item.role, "content": item.content})
    return [Message(**message) for message in chat]


def _began(chat: list[dict[str, Any]]) -> dict[str, Any]:
    """Begin a turn of the model's, and return its message."""
    chat.append({"role": "assistant", "content": ""})
    return chat[-1]


def _no_such_call(call_id: str) -> ApiError:
    message = f"input: there is an output of the call {call_id!r}, and no such call before it"
    return ApiError(400, message, code="invalid_value", param="input")
