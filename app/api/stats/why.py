"""`tandem.why` of an answer: why the server chose its mode and device, what it expected, and what came; and how much of
the request it replaced before it went there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from tandem.deployments.docstrings import describe
from tandem.deployments.request.job import JobStats
from tandem.policies.routing.objectives import Candidate, Estimate, Prediction


class _Part(BaseModel):
    """Part of the reasons."""

    model_config = ConfigDict(json_schema_extra=describe)


class Expected(_Part):
    """Expectation of one figure.

    value: median.
    low: bound that what comes exceeds with a probability of 90 %.
    high: bound that it stays below with a probability of 90 %.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: Estimate) -> Expected:
        """Return the figure of an estimate."""
        low, high = estimate.interval
        return cls(value=_digits(estimate.value), low=_digits(low), high=_digits(high))


class Outlook(_Part):
    """Expectation of an answer in one mode.

    mode: mode.
    device: device that would take part; null if none.
    ttft_s: seconds to the first token.
    tpot_s: seconds per token after it.
    stall_s: seconds that the reader waits after the first token; without a reader, those until the last token.
    usd: dollars for the server's tokens and the device's joules.
    joules: joules that the device spends.
    quality: quality in [0, 1], the target's own being 1.
    leaves: most telling part of the request that leaves the device: nothing, hidden_states or text.
    """

    mode: str
    device: str | None
    ttft_s: Expected
    tpot_s: Expected
    stall_s: Expected
    usd: Expected
    joules: Expected
    quality: float
    leaves: str

    @classmethod
    def of(cls, mode: str, device: str | None, expected: Prediction) -> Outlook:
        """Return what is expected of a mode and a device."""
        return cls(
            mode=mode,
            device=device,
            ttft_s=Expected.of(expected.ttft_s),
            tpot_s=Expected.of(expected.tpot_s),
            stall_s=Expected.of(expected.stall_s),
            usd=Expected.of(expected.usd),
            joules=Expected.of(expected.joules),
            quality=_digits(expected.quality),
            leaves=expected.leaves.name.lower(),
        )


class Came(_Part):
    """Figures of the answer as it came.

    ttft_s: seconds to the first token.
    tpot_s: seconds per token after it.
    stall_s: seconds that the reader waited after the first token; 0 without a reader.
    usd: dollars for the server's tokens and the device's joules.
    joules: joules that the device spent.
    """

    ttft_s: float
    tpot_s: float
    stall_s: float
    usd: float
    joules: float


class Changed(_Part):
    """Change of mode or device on the way, as the rest was expected to be better so.

    position: tokens of the answer before it.
    chosen: expectation of the rest.
    """

    position: int
    chosen: Outlook


class Why(_Part):
    """Reasons of the choice of mode and device, where the server's policy compared them, and the request's privacy.

    chosen: expectation of the mode and the device that were chosen first; null where nothing was compared.
    came: figures of the answer, by whichever mode it ended in; null likewise.
    runner_up: expectation of the next best way; null if there was none.
    by_usd: expected loss of the runner-up less that of the chosen way, dollars; below 0 if the chosen way was tried to
        learn of it.
    ways: number of ways that were compared.
    tried: whether a way was chosen that did not seem the best, to learn of it.
    limit_missed: whether nothing was expected to keep the limit of seconds to the first token.
    changes: changes of mode or device on the way, the first one first.
    replaced: number of different private parts that stand-ins stood for, by kind; null where the request left as it is.
    """

    chosen: Outlook | None = None
    came: Came | None = None
    runner_up: Outlook | None = None
    by_usd: float | None = None
    ways: int = 0
    tried: bool = False
    limit_missed: bool = False
    changes: list[Changed] = []
    replaced: dict[str, int] | None = None


def why(jobs: Sequence[JobStats], replaced: Mapping[str, int] | None = None) -> Why | None:
    """Return the reasons for the first of a request's jobs; None where the server's policy compared nothing, and the
    request left as it is. replaced: number of its parts that were replaced, by kind."""
    job, forecast = jobs[0], jobs[0].forecast
    parts = None if replaced is None else dict(replaced)
    if forecast is None or (reason := forecast.reason) is None:
        return None if parts is None else Why(replaced=parts)
    second: Candidate | None = reason.second
    return Why(
        chosen=Outlook.of(forecast.mode, forecast.device, forecast.expected),
        came=Came(
            ttft_s=_digits(job.ttft_s),
            tpot_s=_digits(job.tpot_s),
            stall_s=_digits(job.stall_s),
            usd=_digits(job.usd),
            joules=_digits(job.joules),
        ),
        runner_up=None if second is None else Outlook.of(*second),
        by_usd=None if second is None else _digits(reason.second_loss - reason.loss),
        ways=reason.candidates,
        tried=reason.tried,
        limit_missed=reason.missed,
        changes=[
            Changed(position=at, chosen=Outlook.of(to.mode, to.device, to.expected)) for at, to in job.changes
        ],
        replaced=parts,
    )


def _digits(value: float) -> float:
    """Return the value with four significant digits."""
    return float(f"{value:.4g}")
