"""What a client gets: OpenAI's response objects, with the `tandem` extension beside `choices`.

tandem.origins: who said what, as [origin, characters] runs in order. They add up to the text of the
object's choices, one choice after the other; characters are Unicode code points. Origins are
those of `cluster.tokenlog.Origin`, and "prompt" for a prompt repeated by `echo`.
tandem.stats: what the request cost, in seconds and tokens; for n > 1 of all choices together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from app.choice import Run
from deployments.job import JobStats


class Stats(BaseModel):
    """Times in seconds. accepted_per_round: drafted tokens that stood, on average over the rounds;
    fused_rounds: those that stayed in the cloud though a device takes part, switches: between the two kinds;
    mean_window: tokens drafted in a round, on average over those that were not fused."""

    mode: str
    device: str | None
    ttft_s: float
    total_s: float
    rounds: int
    fused_rounds: int
    switches: int
    mean_window: float
    drafted: int
    accepted: int
    accepted_per_round: float
    tokens: int
    by_origin: dict[str, int]
    stages_s: dict[str, float]
    replans: int


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


def stats(jobs: Sequence[JobStats]) -> Stats:
    """Of all jobs of a request: the first token of any, the time of the longest, the sum of the rest."""
    by_origin: Counter[str] = Counter()
    stages_s: Counter[str] = Counter()
    for job in jobs:
        by_origin.update({str(origin): n for origin, n in job.by_origin.items()})
        stages_s.update(job.stages_s)
    rounds, accepted = sum(j.rounds for j in jobs), sum(j.accepted for j in jobs)
    distributed = sum(j.rounds - j.fused_rounds for j in jobs)
    drafted = sum(j.drafted - j.fused_drafted for j in jobs)
    return Stats(
        mode=jobs[0].mode,
        device=jobs[0].device,
        ttft_s=round(min(j.ttft_s for j in jobs), 6),
        total_s=round(max(j.total_s for j in jobs), 6),
        rounds=rounds,
        fused_rounds=sum(j.fused_rounds for j in jobs),
        switches=sum(j.switches for j in jobs),
        mean_window=round(drafted / distributed, 3) if distributed else 0.0,
        drafted=sum(j.drafted for j in jobs),
        accepted=accepted,
        accepted_per_round=round(accepted / rounds, 3) if rounds else 0.0,
        tokens=sum(j.tokens for j in jobs),
        by_origin=dict(by_origin),
        stages_s={stage: round(seconds, 6) for stage, seconds in stages_s.items()},
        replans=sum(j.replans for j in jobs),
    )


def tandem(runs: Sequence[Run], jobs: Sequence[JobStats]) -> Tandem:
    """Runs of the same origin that touch are joined."""
    joined: list[Run] = []
    for origin, characters in runs:
        if joined and joined[-1][0] == origin:
            joined[-1] = (origin, joined[-1][1] + characters)
        else:
            joined.append((str(origin), characters))
    return Tandem(origins=joined, stats=stats(jobs))
