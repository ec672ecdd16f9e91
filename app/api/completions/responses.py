"""What a client gets: OpenAI's response objects, with the `tandem` extension beside `choices`.

tandem.origins: who said what, as [origin, characters] runs in order. They add up to the text of the
object's choices, one choice after the other; characters are Unicode code points. Origins are
those of `deployments.request.tokenlog.Origin`, and "prompt" for a prompt repeated by `echo`.
tandem.stats: what the request cost, in seconds and tokens; for n > 1 of all choices together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from tandem.app.api.completions.choice import Run
from tandem.app.api.completions.reader_metrics import Reading
from tandem.deployments.modes import MODES
from tandem.deployments.request.job import JobStats


def _modes_figures(schema: dict[str, Any]) -> None:
    """Into the documentation of Stats."""
    for name, figure in _figures([]).items():
        schema["properties"][name] = {"type": "integer" if isinstance(figure, int) else "number"}
        schema["required"].append(name)


class Stats(BaseModel):
    """Times in seconds. Beside these fields there are those of all modes, see the figures in `deployments.modes`;
    they are 0 where the request was not served in that mode.

    reader_rate: tokens/s, 0 where nobody reads along; then the rest of the reader's figures is null.
    stall_s: how long the reader waited with an empty buffer after the first token.
    effective_tokens: tokens that came while the buffer was below 10 % of the output, and a falling part of those up to
        20 %.
    buffer_max: the most tokens unread.
    server_tokens, device_tokens: (in, out), whatever became of them.
    joules: that the device spent on its own.
    usd: what both cost, the joules at the exchange rate.

    The reader's figures rest on the times at which the tokens came from the engines; with `paced` a client gets them
    later.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=_modes_figures)

    mode: str
    device: str | None
    ttft_s: float
    total_s: float
    tokens: int
    by_origin: dict[str, int]
    stages_s: dict[str, float]
    replans: int
    reader_rate: float
    stall_s: float | None
    effective_tokens: float | None
    buffer_max: int | None
    server_tokens: tuple[int, int]
    device_tokens: tuple[int, int]
    joules: float
    usd: float


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


def stats(jobs: Sequence[JobStats], readings: Sequence[Reading] = ()) -> Stats:
    """Of all jobs of a request: the first token of any, the time of the longest, the fullest buffer, the sum of
    the rest. readings: of the same jobs, by readers of one rate; none where nobody reads along."""
    by_origin: Counter[str] = Counter()
    stages_s: Counter[str] = Counter()
    for job in jobs:
        by_origin.update({str(origin): n for origin, n in job.by_origin.items()})
        stages_s.update(job.stages_s)
    read = [reading for reading in readings if reading.rate]
    return Stats(
        mode=jobs[0].mode,
        device=jobs[0].device,
        ttft_s=round(min(j.ttft_s for j in jobs), 6),
        total_s=round(max(j.total_s for j in jobs), 6),
        tokens=sum(j.tokens for j in jobs),
        by_origin=dict(by_origin),
        stages_s={stage: round(seconds, 6) for stage, seconds in stages_s.items()},
        replans=sum(j.replans for j in jobs),
        reader_rate=read[0].rate if read else 0.0,
        stall_s=round(sum(r.stall_s for r in read), 6) if read else None,
        effective_tokens=round(sum(r.effective_tokens for r in read), 3) if read else None,
        buffer_max=max(r.buffer_max for r in read) if read else None,
        server_tokens=(sum(j.used.server_in for j in jobs), sum(j.used.server_out for j in jobs)),
        device_tokens=(sum(j.used.device_in for j in jobs), sum(j.used.device_out for j in jobs)),
        joules=round(sum(j.joules for j in jobs), 6),
        usd=round(sum(j.usd for j in jobs), 12),
        **_figures(jobs),
    )


def _figures(jobs: Sequence[JobStats]) -> dict[str, Any]:
    """Of every mode, over all jobs."""
    shown: dict[str, Any] = {}
    for mode in MODES.values():
        total = mode.figures()
        for job in jobs:
            total.add(mode.figures.of(job))
        shown |= total.shown()
    return shown


def tandem(runs: Sequence[Run], jobs: Sequence[JobStats], readings: Sequence[Reading]) -> Tandem:
    """Runs of the same origin that touch are joined."""
    joined: list[Run] = []
    for origin, characters in runs:
        if joined and joined[-1][0] == origin:
            joined[-1] = (origin, joined[-1][1] + characters)
        else:
            joined.append((str(origin), characters))
    return Tandem(origins=joined, stats=stats(jobs, readings))
