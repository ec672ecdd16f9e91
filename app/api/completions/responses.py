"""What a client gets: OpenAI's response objects, with the `tandem` extension beside `choices`.

tandem.origins: who said what, as [origin, characters] runs in order. They add up to the text of the
object's choices, one choice after the other; characters are Unicode code points. Origins are
those of `deployments.request.tokenlog.Origin`, and "prompt" for a prompt repeated by `echo`.
tandem.stats: what the request cost, in seconds and tokens; for n > 1 of all choices together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from tandem.app.api.completions.choice import Run
from tandem.app.api.completions.reader_metrics import Reading
from tandem.app.api.completions.stats import Stats, stats
from tandem.deployments.request.job import JobStats


class Tandem(BaseModel):
    origins: list[tuple[str, int]]
    stats: Stats


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: dict[str, Any] | None
    finish_reason: str


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
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


class Model(BaseModel):
    """context: tokens of prompt and output; vocabulary: equal for models whose token ids mean the same."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tandem"
    context: int
    vocabulary: str


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )


def tandem(runs: Sequence[Run], jobs: Sequence[JobStats], readings: Sequence[Reading]) -> Tandem:
    """Runs of the same origin that touch are joined."""
    joined: list[Run] = []
    for origin, characters in runs:
        if joined and joined[-1][0] == origin:
            joined[-1] = (origin, joined[-1][1] + characters)
        else:
            joined.append((str(origin), characters))
    return Tandem(origins=joined, stats=stats(jobs, readings))
