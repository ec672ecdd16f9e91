"""Private parts of a request: stand-ins take their place before it is tokenized, and are taken out of the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from tandem.app.api.completions.schema import ChatRequest, CompletionRequest, Message
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import not_with_stand_ins
from tandem.app.api.http.settings import REPLACED
from tandem.app.api.structured.forms import ResponseFormat, StructuredOutputs
from tandem.app.api.tools.forms import Tool
from tandem.engine.privacy.stand_ins import StandIns

Change = Callable[[str], str]


async def private(
    request: ChatRequest | CompletionRequest, backend: ServingBackend
) -> tuple[ChatRequest | CompletionRequest, StandIns | None]:
    """Return the request as it may leave this machine, and its stand-ins; as it is, and None, where its privacy does
    not ask for them or nothing leaves. Raise ApiError for what shows the text that a model has really seen."""
    asked = request.tandem
    if (asked.privacy or backend.api.privacy) != REPLACED or backend.stays(asked.mode):
        return request, None
    if isinstance(request, CompletionRequest) and not all(isinstance(each, str) for each in request.prompt):
        raise not_with_stand_ins("a prompt of tokens", "prompt")
    if request.wanted_logprobs() >= 0 or request.scored:
        raise not_with_stand_ins("log-probabilities", "logprobs")
    if request.return_token_ids:
        raise not_with_stand_ins("tokens", "return_token_ids")

    def replaced() -> tuple[ChatRequest | CompletionRequest, StandIns]:
        texts: list[str] = []

        def note(text: str) -> str:
            texts.append(text)
            return text

        rewritten(request, note)
        stand_ins = StandIns(texts)
        return rewritten(request, stand_ins.hide), stand_ins

    return await asyncio.to_thread(replaced)


def rewritten(request: ChatRequest | CompletionRequest, change: Change) -> ChatRequest | CompletionRequest:
    """Return the request with all its texts changed; what stays the same in a chat comes first."""
    new: dict[str, Any] = {"stop": [change(stop) for stop in request.stop]}
    if request.response_format is not None:
        new["response_format"] = _format(request.response_format, change)
    if request.structured_outputs is not None:
        new["structured_outputs"] = _outputs(request.structured_outputs, change)
    new |= _own_texts(request, change)
    return request.model_copy(update={name: value for name, value in new.items() if value})


def _own_texts(request: ChatRequest | CompletionRequest, change: Change) -> dict[str, Any]:
    """Return the texts that only one of both kinds has."""
    if isinstance(request, ChatRequest):
        return {
            "tools": [_tool(tool, change) for tool in request.tools],
            "chat_template_kwargs": _mapped(request.chat_template_kwargs, change),
            "messages": [_message(message, change) for message in request.messages],
        }
    prompts = [_mapped(prompt, change) for prompt in request.prompt]
    return {"prompt": prompts, "suffix": change(request.suffix)}


def _message(message: Message, change: Change) -> Message:
    new: dict[str, Any] = {
        name: change(text)
        for name in ("content", "refusal", "reasoning_content")
        if (text := getattr(message, name)) is not None
    }
    if message.tool_calls:
        new["tool_calls"] = [
            call.model_copy(
                update={
                    "function": call.function.model_copy(
                        update={"arguments": _mapped_json(call.function.arguments, change)}
                    )
                }
            )
            for call in message.tool_calls
        ]
    return message.model_copy(update=new)


def _tool(tool: Tool, change: Change) -> Tool:
    function = tool.function
    new = {"parameters": _mapped(function.parameters, change)}
    if function.description is not None:
        new["description"] = change(function.description)
    return tool.model_copy(update={"function": function.model_copy(update=new)})


def _format(form: ResponseFormat, change: Change) -> ResponseFormat:
    if form.json_schema is None:
        return form
    new = {"schema_": _mapped_json(form.json_schema.schema_, change)}
    return form.model_copy(update={"json_schema": form.json_schema.model_copy(update=new)})


def _outputs(form: StructuredOutputs, change: Change) -> StructuredOutputs:
    new: dict[str, Any] = {
        name: change(text) for name in ("regex", "grammar_") if (text := getattr(form, name)) is not None
    }
    if form.json_ is not None:
        new["json_"] = _mapped_json(form.json_, change)
    if form.choice:
        new["choice"] = [change(text) for text in form.choice]
    return form.model_copy(update=new)


def _mapped(value: Any, change: Change) -> Any:
    """Return a JSON value with all its texts changed, keys as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(each, change) for each in value]
    if isinstance(value, dict):
        return {change(key): _mapped(each, change) for key, each in value.items()}
    return value


def _mapped_json(text: str, change: Change) -> str:
    """Return JSON with all its texts changed; what is no JSON is changed as a whole."""
    try:
        read = json.loads(text)
    except ValueError:
        return change(text)
    return json.dumps(_mapped(read, change), ensure_ascii=False)
