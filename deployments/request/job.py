"""Jobs: requests as the API hands them to the executor, their output and their cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from itertools import chain
from typing import ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import ConfigDict

from tandem.deployments.docstrings import describe
from tandem.deployments.request.assignment import Loss, Prices
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.forecast import Change, Forecast
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.deployments.tracing.trace import Trace
from tandem.engine.base import EngineError, Sampling, TokenLogprob
from tandem.engine.config import Strict
from tandem.engine.sketch.base import Question
from tandem.policies.cost import Used
from tandem.policies.routing.objectives import Objective

S = TypeVar("S", bound=Strict)


class UnknownMode(EngineError):
    """The mode is not one this application serves."""

    code = "unknown_mode"


class NoSuchDevice(EngineError):
    """No device of that name is registered, or none at all where one is needed."""

    code = "device_not_found"


class LimitsNotKept(EngineError):
    """No mode keeps the limits that the request's objective sets."""

    code = "limits_not_kept"


@dataclass(frozen=True, slots=True)
class Job:
    """Request of a client, in tokens.

    id: unique id, 63 random bits.
    mode, device: the client's wishes, `device` a name or several to pick from; None leaves it to the policies.
    account: account that pays.
    budget, exchange_rate: of this request; None for the account's.
    modes, devices: names that the account may use; None for all.
    scored: whether to compute log-probabilities of the prompt's tokens, too.
    question: the prompt as text, for modes that prompt differently; None if there are none.
    options: the client's wishes for modes, as `Mode.options` has them; modes that are missing have their defaults.
    model: name of the model that answers; "": the first one.
    priority: among the account's requests that wait for room, the lowest first.
    trace: span of the request; None where nothing is traced.
    objective: what counts for it; None leaves that to the policies.
    log: tokens that the answer begins with, as another executor has left it.
    """

    id: int
    prompt: tuple[int, ...]
    sampling: Sampling
    mode: str | None = None
    device: str | tuple[str, ...] | None = None
    account: str = ""
    budget: float | None = None
    exchange_rate: float | None = None
    modes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    scored: bool = False
    question: Question | None = None
    options: tuple[Strict, ...] = ()
    model: str = ""
    priority: int = 0
    trace: Trace | None = field(default=None, compare=False)
    objective: Objective | None = None
    log: TokenLog = field(default_factory=TokenLog, compare=False)

    def asked(self, kind: type[S]) -> S:
        """Return the options of that kind, the defaults if there are none."""
        return next((each for each in self.options if isinstance(each, kind)), kind())


@dataclass(slots=True)
class Figures:
    """Figures of a mode; here none.

    mode: the mode's name.
    counters: Prometheus counters that `counted` increments: meaning by name, without prefix.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=describe)
    mode: ClassVar[str] = ""
    counters: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def of(cls, stats: JobStats) -> Self:
        """Return the mode's figures of a job; zeros if the mode did not serve it."""
        found = stats.figures.get(cls.mode)
        return found if isinstance(found, cls) else cls()

    def add(self, other: Self) -> None:
        """Add another job's figures to these."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def counted(self) -> Iterator[tuple[str, str, float]]:
        """Yield increments of Prometheus counters: (counter, reason, amount)."""
        return iter(())


Reason = Literal[Loss, "absent", "better"]
"""Reasons to go on elsewhere: an endpoint's failure; or an endpoint that the mode needs, and that was not up when the
answer began; or another way that was expected to be better."""
_SAID: Mapping[Reason, str] = {
    "lost": "{} was lost",
    "late": "{} did not answer in time",
    "full": "{} had no room",
    "refused": "{} refused the request",
    "unfit": "{} had another part of the model",
    "absent": "no {} was up",
    "better": "another way was expected to be better for the rest",
}


class Move(NamedTuple):
    """Continuation of an answer elsewhere.

    position: tokens of the answer before it.
    reason: why.
    role: part in its mode of the endpoint that it went on without; "" for reason "better".
    device: name of that endpoint if it is a device; None otherwise.
    """

    position: int
    reason: Reason
    role: str = ""
    device: str | None = None

    @property
    def words(self) -> str:
        """Return the reason as a clause."""
        what = f"the {self.role}" if self.device is None else f"device {self.device}"
        return _SAID[self.reason].format(self.role if self.reason == "absent" else what)


@dataclass(slots=True)
class JobStats:
    """Times and cost of a job.

    mode, device: mode and device that served it last; None without a device.
    ttft_s, total_s: seconds from the job's arrival at the executor to the first and the last token.
    tokens: output tokens.
    by_origin: output tokens by origin.
    stages_s: seconds by stage (assign, connect, open, draft, verify ...), summed.
    moves: times that it went on elsewhere, the first one first.
    used: tokens taken in and given out by server and device, discarded ones included.
    joules: energy that the device spent.
    prices: prices of tokens and joules, from the router.
    figures: figures of each mode that served the job, by its name.
    stall_s: seconds that its reader waited after the first token; 0 without a reader.
    forecast: what was expected at its first assignment; None where nothing was.
    changes: times that the answer went on in a better way, the first one first.
    """

    mode: str = ""
    device: str | None = None
    ttft_s: float = 0.0
    total_s: float = 0.0
    tokens: int = 0
    by_origin: dict[str, int] = field(default_factory=dict)
    stages_s: dict[str, float] = field(default_factory=dict)
    moves: list[Move] = field(default_factory=list)
    used: Used = field(default_factory=Used)
    joules: float = 0.0
    prices: Prices = field(default_factory=Prices)
    figures: dict[str, Figures] = field(default_factory=dict)
    stall_s: float = 0.0
    forecast: Forecast | None = None
    changes: list[Change] = field(default_factory=list)

    @property
    def replans(self) -> int:
        """Times that it went on elsewhere after an endpoint had failed or was full."""
        return sum(move.reason not in ("absent", "better") for move in self.moves)

    @property
    def tpot_s(self) -> float:
        """Seconds per token after the first one; 0 where there is none."""
        return (self.total_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def bill(self) -> Bill:
        """Return the cost."""
        used, server = self.used, self.prices.server
        return Bill(
            requests=1,
            used=used,
            server_usd_in=server.of(used.server_in, 0),
            server_usd_out=server.of(0, used.server_out),
            joules=self.joules,
            device_usd=self.joules * self.prices.exchange_rate,
        )

    @property
    def usd(self) -> float:
        """Cost in dollars, joules included."""
        bill = self.bill()
        return bill.server_usd + bill.device_usd


def figures_by_mode(jobs: Iterable[JobStats]) -> dict[str, Figures]:
    """Sum the jobs' figures for each mode that served one of them."""
    total: dict[str, Figures] = {}
    for job in jobs:
        for mode, figures in job.figures.items():
            total.setdefault(mode, type(figures)()).add(figures)
    return total


@dataclass(slots=True)
class Delta:
    """New output tokens of a job, in order, which are never taken back.

    finish: why the answer ended, "stop" or "length"; None before its last token.
    logprobs: log-probabilities of the tokens; None if not asked for.
    stats: cost of the request so far, in an object that the executor adds and updates.
    position: index of the first of the tokens in the output.
    prompt_logprobs: log-probabilities of the prompt's next tokens; its first token has none.
    """

    ids: list[int]
    origins: list[Origin]
    finish: str | None = None
    _: KW_ONLY
    logprobs: list[TokenLogprob] | None = None
    stats: JobStats | None = None
    position: int = 0
    prompt_logprobs: list[TokenLogprob] | None = None

    @classmethod
    def join(cls, deltas: Sequence[Delta]) -> Delta:
        """Join consecutive deltas of one job."""
        logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
        prompt_logprobs = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
        return cls(
            [token for delta in deltas for token in delta.ids],
            [origin for delta in deltas for origin in delta.origins],
            next((delta.finish for delta in deltas if delta.finish), None),
            logprobs=list(chain.from_iterable(logprobs)) if logprobs else None,
            stats=next((delta.stats for delta in reversed(deltas) if delta.stats), None),
            position=deltas[0].position,
            prompt_logprobs=list(chain.from_iterable(prompt_logprobs)) if prompt_logprobs else None,
        )

    def split(self, tokens: int) -> tuple[Delta, Delta | None]:
        """Split after the first `tokens` tokens; None if there are no more. `finish` stays with the last token."""
        if tokens >= len(self.ids):
            return self, None
        ids, origins, logprobs = self.ids, self.origins, self.logprobs
        first = replace(
            self,
            ids=ids[:tokens],
            origins=origins[:tokens],
            finish=None,
            logprobs=logprobs and logprobs[:tokens],
        )
        rest = Delta(
            ids[tokens:],
            origins[tokens:],
            self.finish,
            logprobs=logprobs and logprobs[tokens:],
            stats=self.stats,
            position=self.position + tokens,
        )
        return first, rest
