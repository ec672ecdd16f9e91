"""`tandem.stats` of an answer: how it was served, when it came and what it cost; for n > 1 over all choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from tandem.app.api.reader.metrics import Reading
from tandem.deployments.docstrings import describe
from tandem.deployments.modes.figures import FiguresByMode
from tandem.deployments.request.job import JobStats, figures_by_mode


class _Part(BaseModel):
    """Part of the stats."""

    model_config = ConfigDict(json_schema_extra=describe)


class Timing(_Part):
    """Times since the job reached the executor.

    ttft_s: seconds to the first token, the earliest of all choices.
    total_s: seconds to the last token, of the longest choice.
    stages_s: seconds by stage, summed: `assign`, `connect`, `open`, `decode`, `draft`, `verify`, `extend`, `cancel`.
    """

    ttft_s: float
    total_s: float
    stages_s: dict[str, float]


class TokenCounts(_Part):
    """Numbers of tokens.

    output: tokens of the output.
    by_origin: tokens of the output by origin.
    server_in: tokens that the server took in, those computed again included.
    server_out: tokens that the server gave out, discarded ones included.
    device_in: tokens that the device took in, those computed again included.
    device_out: tokens that the device gave out, discarded ones included.
    """

    output: int
    by_origin: dict[str, int]
    server_in: int
    server_out: int
    device_in: int
    device_out: int


class Cost(_Part):
    """Cost of the answer.

    usd: dollars for the server's tokens and, at the exchange rate, the device's joules.
    joules: joules that the device spent, by its profile.
    """

    usd: float
    joules: float


class Moved(_Part):
    """Continuation elsewhere.

    position: tokens of the answer before it.
    reason: an endpoint was `lost`, `late` (it did not answer in time), `full`, `unfit` (it has another part of a split
        model), or `refused` the request; or `absent` when the answer began; or another way was expected to be `better`,
        see `tandem.why.changes`.
    role: part of that endpoint in the mode, such as `drafter`; empty for `better`.
    words: the reason as a clause, such as "the drafter was lost".
    """

    position: int
    reason: str
    role: str
    words: str


class Stats(_Part):
    """Stats of an answer: mode, times, tokens, cost, and the figures of its modes.

    mode: mode in which the answer was served, at the end.
    device: device that took part, at the end; null if none.
    replans: times that the request continued elsewhere, as an endpoint had failed or was full.
    moves: times that it went on elsewhere for any reason, and why; of each choice the first one first.
    timing: times since the executor began.
    tokens: numbers of tokens.
    reader: how the answer came for its reader; null if there is none.
    cost: cost of the answer.
    modes: figures of each mode that served the answer; other modes are absent.
    """

    mode: str
    device: str | None
    replans: int
    moves: list[Moved]
    timing: Timing
    tokens: TokenCounts
    reader: Reading | None
    cost: Cost
    modes: FiguresByMode


def stats(jobs: Sequence[JobStats], readings: Sequence[Reading] = ()) -> Stats:
    """Combine the stats of a request's jobs: `mode` and `device` of the first, sums of what can be summed.

    readings: of the same jobs, by readers of one rate.
    """
    by_origin, stages_s = Counter[str](), Counter[str]()
    for job in jobs:
        by_origin.update({str(origin): tokens for origin, tokens in job.by_origin.items()})
        stages_s.update(job.stages_s)
    return Stats(
        mode=jobs[0].mode,
        device=jobs[0].device,
        replans=sum(job.replans for job in jobs),
        moves=[
            Moved(position=move.position, reason=move.reason, role=move.role, words=move.words)
            for job in jobs
            for move in job.moves
        ],
        timing=Timing(
            ttft_s=round(min(job.ttft_s for job in jobs), 6),
            total_s=round(max(job.total_s for job in jobs), 6),
            stages_s={stage: round(seconds, 6) for stage, seconds in stages_s.items()},
        ),
        tokens=TokenCounts(
            output=sum(job.tokens for job in jobs),
            by_origin=dict(by_origin),
            server_in=sum(job.used.server_in for job in jobs),
            server_out=sum(job.used.server_out for job in jobs),
            device_in=sum(job.used.device_in for job in jobs),
            device_out=sum(job.used.device_out for job in jobs),
        ),
        reader=Reading.join([reading for reading in readings if reading.rate]),
        cost=Cost(
            usd=round(sum(job.usd for job in jobs), 12), joules=round(sum(job.joules for job in jobs), 6)
        ),
        modes=figures_by_mode(jobs),
    )
