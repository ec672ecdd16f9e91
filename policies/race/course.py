"""Expected course of a race: who gives the first token, who most of the others, and who takes in the prompt.

It follows the plans of DiSCo (policies.race.dispatch, policies.race.migration) on average: the constrained endpoint
takes part in the share of races that its budget allows; the cheaper one decodes the answer once it holds the prompt, if
what is saved is more than what that costs.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem.policies.race.costs import Costs
from tandem.policies.race.dispatch import Side


class Contestants(NamedTuple):
    """Expected times of the two, alone, in seconds: to the first token, and per later token."""

    server_first_s: float
    server_token_s: float
    device_first_s: float
    device_token_s: float


class Course(NamedTuple):
    """Expected course.

    ttft_s, tpot_s: seconds to the first token, and per later token.
    server_in, device_in: shares of the prompt that the two take in.
    device_out: share of the answer that the device gives.
    """

    ttft_s: float
    tpot_s: float
    server_in: float
    device_in: float
    device_out: float


def expected_course(budget: float, costs: Costs, times: Contestants, prompt: int, tokens: float) -> Course:
    """Return the expected course of a race.

    budget: share of prompt tokens that the constrained endpoint may take in.
    prompt, tokens: lengths of prompt and answer.
    """
    both, constrained = max(0.0, min(1.0, budget)), costs.constrained
    server_first = times.server_first_s <= times.device_first_s
    # Where only the other one takes part, it gives the first token.
    alone_s = times.device_first_s if constrained is Side.SERVER else times.server_first_s
    ttft_s = both * min(times.server_first_s, times.device_first_s) + (1.0 - both) * alone_s
    device, server = costs.device_usd, costs.server
    cheaper = Side.DEVICE if device.decode < server.decode else Side.SERVER
    prefill, saved = (
        (device.prefill, server.decode - device.decode)
        if cheaper is Side.DEVICE
        else (server.prefill, device.decode - server.decode)
    )
    moves = saved * tokens > prefill * prompt and (cheaper is not constrained or budget >= 1.0)
    if moves:
        device_out = float(cheaper is Side.DEVICE)
    else:
        first_at_device = both * (not server_first) + (1.0 - both) * (constrained is Side.SERVER)
        device_out = first_at_device
    tpot_s = device_out * times.device_token_s + (1.0 - device_out) * times.server_token_s
    shares = (both, 1.0) if constrained is Side.SERVER else (1.0, both)
    return Course(ttft_s, tpot_s, *shares, device_out)
