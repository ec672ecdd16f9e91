"""A live run's requests are simulated as they were, with the live run's settings and costs."""

from __future__ import annotations

import pytest

from tandem.benchmarks.calibration import split
from tandem.benchmarks.calibration.compare import Case, as_simulated, capacity, simulated
from tandem.benchmarks.calibration.live import DEVICES, MAX_TOKENS, PROFILE, TARGET, WINDOW, Seen
from tandem.benchmarks.calibration.profile import Costs
from tandem.deployments.modes import AT_FRONT_DOORS
from tandem.deployments.modes.split import Splitting
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.core.step import GRACE_S
from tandem.simulator.hardware import MeasuredEnds, MeasuredTimer

COSTS = Costs(MeasuredTimer(base_s=0.02, token_s=1e-4, sequence_s=1e-4), call_s=0.001)
PROMPT = list(range(30))


def _seen(arrival_s: float, device: int) -> Seen:
    """An answer of drafts of four, of which every other round accepts two."""
    origins = [Origin.CLOUD]
    while len(origins) < MAX_TOKENS:
        origins += [Origin.DRAFT] * 2 + [Origin.CORRECTED] + [Origin.DRAFT] * 4 + [Origin.BONUS]
    return Seen(arrival_s, device, PROMPT, origins=[*origins[: MAX_TOKENS - 1], Origin.BONUS])


@pytest.mark.parametrize("mode", AT_FRONT_DOORS)
def test_every_request_comes_out_as_long_as_it_was(mode: str) -> None:
    seen = [_seen(0.1 * i, i % DEVICES) for i in range(5)]
    result = simulated(Case(mode, 0.01, 10.0, seen, COSTS, as_simulated(TARGET)))
    assert [answer.arrival_s for answer in result.answers] == [one.arrival_s for one in seen]
    assert [answer.tokens for answer in result.answers] == [MAX_TOKENS] * 5
    assert {answer.mode for answer in result.answers} == {mode}
    config = result.config
    if mode != "sketch":  # nothing is drafted there
        assert config.window == WINDOW  # type: ignore[attr-defined]  # a field of each mode's
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


SPLIT_COSTS = Costs(
    MeasuredTimer(base_s=0.01, token_s=1e-4),
    call_s=0.0005,
    ends=MeasuredEnds(base_s=0.002, token_s=1e-4, head_s=1e-4),
)


def _split(confidence: float, accepted: bool) -> Case:
    """Every token of one answer drafted alike."""
    one = _seen(0.0, 0)
    one.acceptance, one.confidence = bytes([accepted] * MAX_TOKENS), (confidence,) * MAX_TOKENS
    return Case("split", 0.01, 1.0, [one], SPLIT_COSTS, as_simulated(split.MIDDLE))


def test_a_split_model_is_simulated_as_it_was() -> None:
    result = simulated(_split(0.9, accepted=True))
    (answer,) = result.answers
    assert (answer.mode, answer.tokens) == ("split", MAX_TOKENS)
    config = result.config
    assert (config.split.chunking, config.split.drafting) == (split.SPLIT.chunking, split.SPLIT.drafting)  # type: ignore[attr-defined]  # a field of each mode's
    assert config.split.wire == split.SPLIT.wire  # type: ignore[attr-defined]  # a field of each mode's
    (target,), (device,) = config.topology()
    assert (target.first, target.engine.kv_tokens) == (split.LAYERS, split.MIDDLE.kv_tokens)
    assert device.link == split.link(0.01)
    assert device.ends == SPLIT_COSTS.ends


def test_drafts_end_where_the_adapter_was_unsure() -> None:
    def drafted(confidence: float, accepted: bool) -> tuple[float, float]:
        (answer,) = simulated(_split(confidence, accepted)).answers
        assert answer.stats is not None
        one = Splitting.of(answer.stats)
        return one.drafted / one.rounds, one.accepted / one.rounds

    assert drafted(0.5, accepted=True) == (pytest.approx(1.0, abs=0.05), pytest.approx(1.0, abs=0.05))
    length, stand = drafted(0.9, accepted=True)
    assert length == stand > 5
    length, stand = drafted(0.9, accepted=False)
    assert length > 5 > stand == 0


def test_devices_can_do_so_much() -> None:
    assert capacity(COSTS, "device") == 8 * (PROFILE.decode_tokens_per_s or 0) / MAX_TOKENS
    assert capacity(COSTS, "speculative") > capacity(COSTS, "cloud")
    dear = Costs(COSTS.timer, COSTS.call_s, MeasuredEnds(base_s=0.1))
    assert 0 < capacity(dear, "split") < capacity(SPLIT_COSTS, "split")
