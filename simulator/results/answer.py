"""Outcome of one request, as its reader saw it and as it was billed."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.request.job import Delta, JobStats
from tandem.simulator.workload import Request


class Delivery(NamedTuple):
    """One delivery to the reader.

    time_s: when it arrives.
    tokens: of the output.
    window: γ of the speculative round, 0 outside one.
    distributed: whether a device drafted.
    """

    time_s: float
    tokens: int
    window: int
    distributed: bool


class SimulatedAnswer:
    """One answer. Times in virtual seconds; those of tokens are the reader's.

    arrival_s: when the request arrived.
    first_s, last_s: when its first and its last token arrived; NaN without one.
    tokens: arrived so far.
    number: the request's number in the script; 0 if it was never made.
    finish: "stop" or "length", once it is complete.
    failure: code of the error that ended it otherwise.
    ended_s: when it ended, either way; NaN until then.
    server, device: index of the server that served it last and of its client's device; −1 for none.
    stats: the executor's statistics.
    times_s: of every token, if there is a reader or the history is kept.
    ids, history: every token, and every delivery, if they are kept.
    """

    __slots__ = (
        "_seen",
        "arrival_s",
        "device",
        "ended_s",
        "failure",
        "finish",
        "first_s",
        "history",
        "ids",
        "last_s",
        "number",
        "request",
        "server",
        "stats",
        "times_s",
        "tokens",
    )

    def __init__(self, request: Request, arrival_s: float, device: int, keep_history: bool) -> None:
        self.request, self.arrival_s, self.device = request, arrival_s, device
        self.first_s = self.last_s = self.ended_s = float("nan")
        self.tokens, self.number, self.server = 0, 0, -1
        self.finish: str | None = None
        self.failure: str | None = None
        self.stats: JobStats | None = None
        self.times_s = array("d") if keep_history or request.reader_rate else None
        self.history: list[Delivery] | None = [] if keep_history else None
        self.ids: list[int] | None = [] if keep_history else None
        self._seen = (0, 0)  # tokens drafted and rounds fused so far

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return self.request.output_tokens

    @property
    def rate(self) -> float:
        """The reader's tokens/s; 0 without a reader."""
        return self.request.reader_rate

    @property
    def ttft_s(self) -> float:
        """Seconds from the request to the first token; NaN without one."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """Mean seconds between tokens; NaN with fewer than two."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else float("nan")

    @property
    def e2e_s(self) -> float:
        """Seconds from the request to the last token; NaN without one."""
        return self.last_s - self.arrival_s

    @property
    def mode(self) -> str:
        """Mode that served it last."""
        return "" if self.stats is None else self.stats.mode

    @property
    def origins(self) -> Mapping[str, int]:
        """Tokens by origin."""
        return {} if self.stats is None else self.stats.by_origin

    @property
    def finished(self) -> bool:
        return self.finish is not None

    @property
    def cut(self) -> bool:
        """Whether it ended at a limit, its client's or the context's, before its trace does."""
        return self.finish == "length" and self.tokens < self.output_tokens

    @property
    def rounds(self) -> Speculation:
        """Speculation figures; zeros in other modes."""
        return Speculation() if self.stats is None else Speculation.of(self.stats)

    def append(self, delta: Delta, time_s: float) -> None:
        """Add tokens that reach the reader; raises ValueError for a time before that of earlier ones."""
        tokens = len(delta.ids)
        if delta.finish is not None:
            self.finish, self.ended_s = delta.finish, time_s
        if not tokens:
            return
        if time_s < self.last_s or time_s < self.arrival_s:
            raise ValueError(f"{tokens} tokens at {time_s} s, after some at {self.last_s} s")
        if not self.tokens:
            self.first_s = time_s
        self.last_s = time_s
        self.tokens += tokens
        if self.times_s is not None:
            self.times_s.extend([time_s] * tokens)
        if self.ids is not None:
            self.ids += delta.ids
        if self.history is not None and delta.stats is not None:
            rounds = Speculation.of(delta.stats)
            drafted, fused = self._seen
            self._seen = rounds.drafted, rounds.fused_rounds
            window = rounds.drafted - drafted
            self.history.append(Delivery(time_s, tokens, window, window > 0 and rounds.fused_rounds == fused))
