"""Features of the network: a pair's state, and one candidate window.

DSD's network maps five numbers (queue, acceptance, RTT, TPOT, previous γ) to γ. This one judges each candidate window
by itself and also sees what the closed form of speculative decoding expects of it: so it only has to learn where
reality differs (queueing, padding, an acceptance known from a few rounds), and one network serves slow and fast
hardware.
"""

from __future__ import annotations

from math import log

from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.policies.speculation.window import WindowState

WINDOWS = range(1, MAX_WINDOW + 1)  # 1 is fused
STATE = (
    "queue",
    "acceptance",
    "log_rtt",
    "log_tpot",
    "previous",
    "alpha",
    "log_judged",
    "rtt_over_verify",
    "draft_over_verify",
    "fused_over_verify",
    "verify_over_least",
    "fused_over_least",
)
CANDIDATE = ("window", "fused", "expected")
PRIOR_TOKENS = 6.0
_FLOOR_S = 1e-4  # below a tenth of a millisecond, times make no difference


def features(state: WindowState) -> tuple[list[float], list[float]]:
    """Return the state's features, in the order of STATE, and the closed form's costs of each of WINDOWS: the natural
    logarithm of seconds per token relative to the least."""
    verify_s = max(state.verify_s or state.tpot_s, _FLOOR_S)
    draft_s = max(state.draft_s, _FLOOR_S)
    fused_s = max(state.fused_s or verify_s, _FLOOR_S)
    rtt_s = max(state.rtt_s, _FLOOR_S)
    # A few rounds are uncertain: the acceptance of other pairs counts as PRIOR_TOKENS judged ones.
    prior, weight = (state.prior, PRIOR_TOKENS) if state.prior > 0 else (2 / 3, 3.0)
    alpha = (prior * weight + state.alpha * state.judged) / (weight + state.judged)
    seen = [
        0.5 * log(max(1.0, state.queue)),
        state.acceptance,
        0.5 * log(rtt_s / 0.02),
        0.5 * log(max(state.tpot_s, _FLOOR_S) / 0.02),
        state.previous / MAX_WINDOW,
        alpha,
        log(1.0 + state.judged) - 3.0,
        0.5 * log(rtt_s / verify_s),
        0.5 * log(draft_s / verify_s),
        0.5 * log(fused_s / verify_s),
        0.5 * log(verify_s / max(state.verify_least_s, _FLOOR_S)) if state.verify_least_s > 0 else 0.0,
        0.5 * log(fused_s / max(state.fused_least_s, _FLOOR_S)) if state.fused_least_s > 0 else 0.0,
    ]
    expected = [log(fused_s)]
    tokens, power, round_s = 1.0 + alpha, alpha, rtt_s + verify_s + draft_s
    for _ in range(2, MAX_WINDOW + 1):
        power *= alpha
        tokens += power
        round_s += draft_s
        expected.append(log(round_s / tokens))
    least = min(expected)
    return seen, [cost - least for cost in expected]
