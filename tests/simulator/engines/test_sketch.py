"""Mode sketch in virtual time with devices that hold several models."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.deployments.modes.sketch.mode import Sketched
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.engines.script import EOS, TOKEN
from tandem.simulator.results.answer import SimulatedAnswer
from tandem.simulator.workload import Request
from tandem.simulator.world.world import World
from tests.simulator.configurations import TARGET, config
from tests.simulator.worlds import run

SLOW = {**TARGET, "measured": {"base_s": 0.2, "token_s": 0.0002}}
QUICK, GOOD = ({"prefill_tokens_per_s": 4000, "decode_tokens_per_s": rate} for rate in (400, 50))
ALWAYS = {"name": "always"}


def world(load_s: float, requests: int = 1, **least_share: float) -> tuple[World, list[SimulatedAnswer]]:
    """One device that begins with a quick model and holds a good one, after all was answered."""
    known = {"capability": 0.7, **least_share}
    said: dict[str, Any] = {
        "mode": "sketch",
        "targets": [SLOW],
        "devices": [
            {"rates": QUICK, "sessions": 4, "batch": 4, "others": [{"rates": GOOD, "load_s": load_s}]},
        ],
        "sketch": {
            "sketching": ALWAYS,
            "models": {"devices-0": known, "devices-0-1": {"capability": 1.0}},
            "doubted": 0.0,
        },
        "history": True,
    }
    asked = [Request(300.0 * n, 40, 300, b"\1" * 300) for n in range(requests)]
    after, answers = run(config(**said), asked)
    for answer in answers:
        assert answer.ids == [*range(TOKEN, TOKEN + 299), EOS]
        assert answer.stats is not None
        told = Sketched.of(answer.stats)
        assert (told.sketches, told.moved, told.rewritten) == (1, 0, 0)
    return after, answers


def loaded(after: World) -> str:
    """Return the loaded model, on which device and router agree."""
    model = after.devices[0].device.info.model
    assert after.routing.assigner.devices["device-0"].model == model
    return model


@pytest.mark.slow
def test_with_time_to_spare_it_loads_the_good_model_if_that_is_worth_it() -> None:
    assert loaded(world(0.0, requests=2)[0]) == "devices-0-1", "the target's speed is known from the first on"
    assert loaded(world(2.0, requests=8)[0]) == "devices-0-1"
    assert loaded(world(1e4, requests=8)[0]) == "devices-0"


def test_loading_takes_its_time() -> None:
    """The quick model needs a longer sketch than there is."""
    times_s = []
    for load_s in (0.0, 7.0):
        after, (answer,) = world(load_s, least_share=0.9)
        assert loaded(after) == "devices-0-1"
        times_s.append(answer.last_s)
    assert times_s[1] - times_s[0] == pytest.approx(7.0, abs=0.01)


def test_others_are_said_like_the_first() -> None:
    with pytest.raises(ConfigError, match="either hardware and model, or profile, or rates, or measured"):
        config(devices=[{"rates": QUICK, "others": [{"load_s": 1.0}]}])


@pytest.mark.parametrize("share", [0.15, 0.25, 0.4, 0.6, 0.8])
def test_a_sketch_is_as_long_as_was_asked_for(share: float) -> None:
    said: dict[str, Any] = {
        "mode": "sketch",
        "targets": [SLOW],
        "devices": [{"rates": QUICK, "sessions": 4, "batch": 4}],
        "sketch": {"share": 0.4, "sketching": {"name": "always", "parameters": {"share": share}}},
        "history": True,
    }
    _, answers = run(config(**said), [Request(300.0 * n, 40, 400, b"\1" * 400) for n in range(3)])
    for answer in answers:
        assert answer.ids == [*range(TOKEN, TOKEN + 399), EOS]
        assert answer.stats is not None
        told = Sketched.of(answer.stats)
        misjudged = (
            abs(told.expected_tokens - 399) if share == 0.4 else 0
        )  # the sketch of the target's own accord
        assert told.tokens == pytest.approx(share * told.expected_tokens, abs=10 + share * misjudged)


@pytest.mark.parametrize("doubted", [0.0, 0.3])
def test_what_the_target_doubts_it_writes_itself(doubted: float) -> None:
    said: dict[str, Any] = {
        "mode": "sketch",
        "targets": [SLOW],
        "devices": [{"rates": QUICK, "sessions": 4, "batch": 4}],
        "sketch": {"sketching": ALWAYS, "doubted": doubted},
        "history": True,
    }
    _, answers = run(config(**said), [Request(300.0 * n, 40, 400, b"\1" * 400) for n in range(4)])
    told = [Sketched.of(answer.stats) for answer in answers if answer.stats is not None]
    verified, rewritten = sum(each.verified for each in told), sum(each.rewritten for each in told)
    assert verified == sum(each.notes - each.openings for each in told)
    assert rewritten / verified == pytest.approx(doubted, abs=0.16)
    assert bool(rewritten) == bool(doubted)
    for answer in answers:
        assert answer.ids == [*range(TOKEN, TOKEN + 399), EOS]


def test_the_first_word_comes_with_the_first_note() -> None:
    """A sketch of 0.4 · 399 tokens takes 32 s; its length and first note are there after some 10 tokens."""
    said: dict[str, Any] = {
        "mode": "sketch",
        "targets": [SLOW],
        "devices": [{"rates": QUICK, "sessions": 4, "batch": 4}],
        "sketch": {"share": 0.4, "sketching": ALWAYS, "doubted": 0.0},
    }
    _, (answer,) = run(config(**said), [Request(0.0, 40, 400, b"\1" * 400)])
    assert answer.stats is not None
    assert Sketched.of(answer.stats).openings == 1
    assert answer.ttft_s < 4.0
