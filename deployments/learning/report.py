"""Report of an answer: its usage, and what can be learned from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.deployments.access.quota import Standing
from tandem.deployments.request.bill import Bill, Charge
from tandem.deployments.request.forecast import Forecast


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
    ttft_s: seconds to the first token; 0 if there was none.
    tpot_s: seconds per token after it; 0 if there were none.
    stall_s: seconds that its reader waited after the first token; 0 without a reader.
    forecast: what was expected of the answer; None where nothing was, or where it was moved on its way.
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
    counts: bool = True
    standing: Standing | None = None

    def charge(self, day: str) -> Charge:
        """Return what is to be booked for the answer. day: of its end, as in Charge."""
        return Charge(self.account, self.device, self.bill, self.mode, self.model, day)
