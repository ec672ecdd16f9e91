"""OpenAI's response objects, with the `tandem` extension beside `choices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tandem.app.api.completions.choice import Run
from tandem.app.api.reader.metrics import Reading
from tandem.app.api.stats.stats import Stats, stats
from tandem.app.api.stats.why import Why, why
from tandem.app.api.tools.reader import CallPart
from tandem.deployments.docstrings import describe
from tandem.deployments.request.job import JobStats


class Tandem(BaseModel):
    """The `tandem` extension.

    origins: runs of [origin, characters] in order, which add up to the text of the choices, one after the other; a
        character is a Unicode code point, an origin one of `deployments.request.tokenlog.Origin` or, for a prompt
        repeated by `echo`, "prompt".
    stats: how the answer was served, when it came and what it cost.
    why: why the server chose its mode and device, and what privacy it gave; null where its policy compares nothing and
        the request left as it is.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    origins: list[tuple[str, int]]
    stats: Stats
    why: Why | None = None


class CompletionDetails(BaseModel):
    reasoning_tokens: int = 0


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails = CompletionDetails()


class CalledFunction(BaseModel):
    name: str
    arguments: str


class CalledTool(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class AssistantMessage(BaseModel):
    """An answer.

    content: its text; null where it only calls tools.
    reasoning_content: what the model thought before it answered; null if it did not think.
    tool_calls: its calls of tools; null if there are none.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[CalledTool] | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: list[int] | None


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: list[int] | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[dict[str, Any] | None] | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[dict[str, Any] | None] | None
    usage: Usage
    tandem: Tandem


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    tandem: Tandem


class DeletedStream(BaseModel):
    id: str
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    deleted: Literal[True] = True


def joined_calls(parts: Iterable[CallPart]) -> list[CalledTool]:
    """Return the calls whose parts came one after the other."""
    calls: list[CalledTool] = []
    for part in parts:
        if part.id is not None and part.name is not None:
            calls.append(CalledTool(id=part.id, function=CalledFunction(name=part.name, arguments="")))
        calls[part.index].function.arguments += part.arguments
    return calls


def usage(prompt_tokens: int, completion_tokens: int, reasoning_tokens: int) -> Usage:
    """Return OpenAI's usage object. reasoning_tokens: those of the completion with which the model thinks."""
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        completion_tokens_details=CompletionDetails(reasoning_tokens=reasoning_tokens),
    )


def tandem(
    runs: Sequence[Run],
    jobs: Sequence[JobStats],
    readings: Sequence[Reading],
    replaced: Mapping[str, int] | None = None,
) -> Tandem:
    """Combine what the choices report; adjacent runs of one origin are joined. replaced: as in `Admitted`."""
    joined: list[Run] = []
    for origin, characters in runs:
        if joined and joined[-1][0] == origin:
            joined[-1] = (origin, joined[-1][1] + characters)
        else:
            joined.append((str(origin), characters))
    return Tandem(origins=joined, stats=stats(jobs, readings), why=why(jobs, replaced))
