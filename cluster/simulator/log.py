"""What became of one request: its token log in counts and times, and what it cost."""

from __future__ import annotations

from typing import NamedTuple

from cluster.tokenlog import Origin
from policies.cost import Used


class Round(NamedTuple):
    """One delivery: `tokens` of the output reach the reader at `time_s`; window: γ of the round, 0 outside."""

    time_s: float
    tokens: int
    window: int
    distributed: bool


class Log:
    """Append-only. Times in seconds since the simulation's start; times of tokens are the reader's.

    origins: tokens by origin; rate: of the reader, tokens/s, 0 for none; rounds: speculative rounds,
    `fused_rounds` of them without the device; drafted, accepted: tokens; device_drafted: those of the other
    rounds; verify_s: at the server; of races, used: tokens at either endpoint, migrations: from one to the
    other; history: every speculative round, times_s: of every token, both only kept
    if asked for.
    """

    __slots__ = (
        "accepted",
        "arrival_s",
        "device",
        "device_drafted",
        "drafted",
        "first_s",
        "fused_rounds",
        "history",
        "last_s",
        "migrations",
        "network_s",
        "origins",
        "output_tokens",
        "prompt_tokens",
        "rate",
        "rounds",
        "server",
        "switches",
        "times_s",
        "tokens",
        "used",
        "verify_s",
    )

    def __init__(self, arrival_s: float, prompt_tokens: int, output_tokens: int, keep_history: bool) -> None:
        self.arrival_s, self.prompt_tokens, self.output_tokens = arrival_s, prompt_tokens, output_tokens
        self.first_s = self.last_s = float("nan")
        self.tokens = self.rounds = self.fused_rounds = self.drafted = self.accepted = self.switches = 0
        self.device_drafted = self.migrations = 0
        self.used: Used | None = None
        self.verify_s = self.network_s = 0.0
        self.server = self.device = -1
        self.rate = 0.0
        self.origins: dict[Origin, int] = {}
        self.history: list[Round] | None = [] if keep_history else None
        self.times_s: list[float] | None = [] if keep_history else None

    @property
    def finished(self) -> bool:
        return self.tokens == self.output_tokens

    @property
    def left(self) -> int:
        """Output tokens still to come."""
        return self.output_tokens - self.tokens

    def append(self, time_s: float, tokens: int, origin: Origin) -> None:
        """So many tokens reach the reader; raises ValueError beyond the output's end or back in time."""
        if tokens <= 0:
            return
        if self.tokens + tokens > self.output_tokens or time_s < self.last_s or time_s < self.arrival_s:
            raise ValueError(
                f"{tokens} tokens at {time_s} s after {self.tokens} of {self.output_tokens} at {self.last_s} s"
            )
        if not self.tokens:
            self.first_s = time_s
        self.last_s = time_s
        if self.times_s is not None:
            self.times_s += [time_s] * tokens
        self.tokens += tokens
        self.origins[origin] = self.origins.get(origin, 0) + tokens

    def speculate(self, time_s: float, drafted: int, accepted: int, distributed: bool) -> None:
        """A speculative round reaches the reader: the accepted drafts, then the target's own token."""
        self.rounds += 1
        self.fused_rounds += not distributed
        self.drafted += drafted
        self.device_drafted += drafted if distributed else 0
        self.accepted += accepted
        self.append(time_s, accepted, Origin.DRAFT)
        own = Origin.CORRECTED if accepted < drafted else Origin.BONUS if drafted else Origin.CLOUD
        self.append(time_s, 1, own)
        if self.history is not None:
            self.history.append(Round(time_s, accepted + 1, drafted, distributed))
