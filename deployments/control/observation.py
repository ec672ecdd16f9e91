"""Observations of requests that are over: what the API tells the router's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.deployments.request.forecast import Compared
from tandem.engine.distribution import Distribution

OPEN = "open"
"""The mode of a request that left it open and did not get as far as to be given one."""
ABORT = "abort"
"""Why an answer ended whose client had gone, in vLLM's word."""
ERROR = "error"
"""Why an answer ended that failed here, in vLLM's word."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A request that is over, however it ended, as the API saw it.

    mode: in which it was served; if it did not get that far, asked for, or OPEN.
    status: of HTTP.
    prompt_tokens: taken in.
    origins: output tokens by origin.
    finished: why each answer ended that did: "stop", "length", "content_filter", ABORT or ERROR.
    queue_s: that it waited at the gate; None: it did not pass.
    ttft_s: from its arrival to the first text sent; None: there was none.
    total_s: from its arrival to the last text sent; None: it did not come to its end.
    tpot_s: of each answer, seconds per token after the first.
    stall_s: that its readers waited after the first token; None: there is no reader.
    read_tokens, effective_tokens: of its readers, as `policies.reader.quality` counts.
    rounds: speculative rounds with drafts.
    drafted, accepted: tokens.
    replans: how often an answer went on elsewhere.
    changes: modes in which answers went on as those were better.
    usd, joules: that it cost.
    counted: what modes count in their figures, by counter and reason.
    key: id of the API key; "" without one.
    device: device that took part, the last one; "" if none.
    device_tokens_in, device_tokens_out: tokens that devices took in and gave out.
    answers: answers asked for.
    most_tokens: tokens that each of them might have.
    answer_tokens: output tokens of each whole answer.
    decode_s: seconds from the first token to the last, of each whole answer.
    gaps_s: seconds between an answer's tokens, or groups of them that came together; bounds are TOKEN_S.
    model: name of the model, or of its adapter; "": the first one, or none yet.
    forecasts: figures of answers that went as they were assigned, beside their forecasts.
    """

    mode: str
    status: int
    prompt_tokens: int = 0
    origins: Mapping[str, int] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    tpot_s: tuple[float, ...] = ()
    stall_s: float | None = None
    read_tokens: int = 0
    effective_tokens: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    replans: int = 0
    changes: tuple[str, ...] = ()
    usd: float = 0.0
    joules: float = 0.0
    counted: Mapping[tuple[str, str], float] = field(default_factory=dict)
    key: str = ""
    device: str = ""
    device_tokens_in: int = 0
    device_tokens_out: int = 0
    answers: int = 0
    most_tokens: int = 0
    answer_tokens: tuple[int, ...] = ()
    decode_s: tuple[float, ...] = ()
    gaps_s: Distribution | None = None
    model: str = ""
    forecasts: tuple[Compared, ...] = ()
