"""Report of an answer: its usage, and what can be learned from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tandem.deployments.access.quota import Standing
from tandem.deployments.request.bill import Bill, Charge
from tandem.deployments.request.forecast import Forecast


class Part(NamedTuple):
    """Part of an answer that was given in one way, before it went on in another.

    forecast: what was expected of the answer from there on.
    tokens: of the part.
    ttft_s: seconds to its first token.
    tpot_s: seconds per token after that; 0 if there were none.
    stall_s: seconds that its reader waited after it; 0 without a reader.
    """

    forecast: Forecast
    tokens: int
    ttft_s: float
    tpot_s: float
    stall_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """Report of an answer to the router, once it is over, however it ended: its usage, and what can be learned.

    account: account that pays.
    device: device that took part; "" if none did.
    tokens: tokens of the answer.
    whole: whether the answer is complete.
    bill: usage, complete or not.
    taught: by mode, the result of its `ModeRun.report`.
    request: id of the job.
    model: name of the model; "": the first one.
    mode: that served the answer last.
    ttft_s: seconds to the first token; 0 if there was none, or the parts tell.
    tpot_s: seconds per token after it; 0 if there were none, or the parts tell.
    stall_s: seconds that its reader waited after the first token; 0 without a reader.
    forecast: what was expected of the answer; None where nothing was, or endpoints failed it.
    parts: of an answer that changed its way because another was better.
    counts: whether what other accounts are promised may rest on it.
    standing: what the account has spent, this answer included; None where that is not known.
    """

    account: str
    device: str
    tokens: int
    whole: bool
    bill: Bill
    taught: Mapping[str, object] = field(default_factory=dict)
    request: int = 0
    model: str = ""
    mode: str = ""
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    stall_s: float = 0.0
    forecast: Forecast | None = None
    parts: tuple[Part, ...] = ()
    counts: bool = True
    standing: Standing | None = None

    def charge(self, day: str) -> Charge:
        """Return what is to be booked for the answer. day: of its end, as in Charge."""
        return Charge(self.account, self.device, self.bill, self.mode, self.model, day)

    def by_part(self) -> Iterator[Report]:
        """Yield a report of each part, from which nothing is learnt but times."""
        for part in self.parts:
            yield replace(
                self,
                device=part.forecast.device or "",
                tokens=part.tokens,
                whole=False,
                bill=Bill(),
                taught={},
                mode=part.forecast.mode,
                ttft_s=part.ttft_s,
                tpot_s=part.tpot_s,
                stall_s=part.stall_s,
                forecast=part.forecast,
                parts=(),
                standing=None,
            )
