"""A live run's requests are simulated as they were, with the live run's settings and costs."""

from __future__ import annotations

import pytest

from benchmarks.calibration.compare import Case, as_simulated, capacity, simulated
from benchmarks.calibration.live import DEVICES, MAX_TOKENS, PROFILE, RACING, TARGET, WINDOW, Costs, Seen, fit
from deployments.modes import MODES
from deployments.request.tokenlog import Origin
from engine.core.step import GRACE_S
from simulator.hardware import MeasuredTimer

COSTS = Costs(MeasuredTimer(base_s=0.02, token_s=1e-4, sequence_s=1e-4), call_s=0.001)


def _seen(arrival_s: float, device: int) -> Seen:
    """An answer of drafts of four, of which every other round accepts two."""
    origins = [Origin.CLOUD]
    while len(origins) < MAX_TOKENS:
        origins += [Origin.DRAFT] * 2 + [Origin.CORRECTED] + [Origin.DRAFT] * 4 + [Origin.BONUS]
    return Seen(arrival_s, device, 30, 0.0, origins=[*origins[: MAX_TOKENS - 1], Origin.BONUS])


@pytest.mark.parametrize("mode", MODES)
def test_every_request_comes_out_as_long_as_it_was(mode: str) -> None:
    seen = [_seen(0.1 * i, i % DEVICES) for i in range(5)]
    result = simulated(Case(mode, 0.01, 10.0, seen, COSTS, as_simulated(TARGET)))
    assert [answer.arrival_s for answer in result.answers] == [one.arrival_s for one in seen]
    assert [answer.tokens for answer in result.answers] == [MAX_TOKENS] * 5
    assert {answer.mode for answer in result.answers} == {mode}
    config = result.config
    assert (config.window, config.racing) == (WINDOW, RACING)
    for name in ("kv_blocks", "token_budget", "max_sessions", "batching", "scheduling"):
        assert getattr(config.engine, name) == getattr(TARGET, name)


def test_drafts_are_accepted_where_they_were() -> None:
    (answer,) = simulated(
        Case("speculative", 0.01, 10.0, [_seen(0.0, 0)], COSTS, as_simulated(TARGET))
    ).answers
    assert answer.origins[Origin.CORRECTED] == _seen(0.0, 0).origins.count(Origin.CORRECTED)
    assert answer.rounds.accepted == _seen(0.0, 0).origins.count(Origin.DRAFT)


def test_calls_are_paid_for() -> None:
    def ttft_s(costs: Costs) -> float:
        (answer,) = simulated(Case("cloud", 0.01, 10.0, [_seen(0.0, 0)], costs, as_simulated(TARGET))).answers
        return answer.first_s - answer.arrival_s

    dear = Costs(COSTS.timer, call_s=0.0019)
    # the prompt's way there and its answer, the question's and the token's: so long the engine waits for the question
    assert dear.call_s < GRACE_S
    assert ttft_s(dear) == pytest.approx(ttft_s(COSTS) + 2 * 0.0009)


def test_a_fit_finds_what_steps_cost_and_nothing_below_zero() -> None:
    rows = [
        (steps, steps * tokens, steps * sequences)
        for steps in (1, 2, 5)
        for tokens, sequences in ((8, 8), (40, 8), (3, 1))
    ]
    times_s = [0.02 * steps + 0.001 * tokens + 0.002 * sequences for steps, tokens, sequences in rows]
    assert fit(rows, times_s) == pytest.approx([0.02, 0.001, 0.002])
    falling = [0.02 * steps - 0.0001 * tokens for steps, tokens, _ in rows]
    assert min(fit(rows, falling)) == 0.0


def test_devices_can_do_so_much() -> None:
    assert capacity(COSTS.timer, "device") == 8 * (PROFILE.decode_tokens_per_s or 0) / MAX_TOKENS
    assert capacity(COSTS.timer, "speculative") > capacity(COSTS.timer, "cloud")
