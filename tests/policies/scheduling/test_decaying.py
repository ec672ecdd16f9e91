"""The reserve of SGLang-like admission by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.policies.scheduling.decaying import DecayingReserve
from tests.policies.scheduling.test_policies import load

CROWD = load(2, running=[True, False], tokens=100, received=[100, 0], longest=300, base_s=0.08, token_s=0.02)
"""One runs, so that a step takes 0.1 s."""


def test_the_reserve_decays_with_the_engines_steps() -> None:
    policy = DecayingReserve(start=0.75, least=0.25, steps=10)
    shares = []
    for now_s in (0.0, 0.2, 0.3, 0.9, 5.0):
        policy.choose(replace(CROWD, now_s=now_s))
        shares.append(policy._share)
    assert shares == pytest.approx([0.75, 0.65, 0.6, 0.3, 0.25])
    policy.choose(replace(CROWD, now_s=6.0, running=CROWD.running & False))
    assert policy._share == 0.75, "nobody runs"


def test_when_memory_runs_out_room_for_twenty_tokens_each_is_kept() -> None:
    policy = DecayingReserve(start=0.75, least=0.25, steps=10)
    crowd = load(3, tokens=[100, 100, 110], received=[40, 20, 30], longest=[100, 200, 100], capacity=250)
    policy.choose(replace(crowd, now_s=1e6))
    assert policy._share == pytest.approx((90 + 3 * 20) / 400)
    long = load(3, tokens=100, received=5, longest=1000, capacity=250)
    policy.choose(replace(long, now_s=1e6))
    assert policy._share == 0.25, "no less than the least"
    short = load(3, tokens=100, received=90, longest=100, capacity=250)
    policy.choose(replace(short, now_s=1e6))
    assert policy._share == 1.0


def test_of_those_who_have_got_as_little_the_longest_prompt_gives_way() -> None:
    crowd = load(3, tokens=[90, 120, 100], received=[20, 20, 40], longest=100, capacity=200)
    assert DecayingReserve().choose(crowd).tolist() == [2, 0]


@pytest.mark.parametrize("wrong", [{"start": 1.1}, {"least": -0.1}, {"steps": 0}, {"interval_s": 0.0}])
def test_nonsense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="needs 0 ≤ least ≤ start ≤ 1, steps ≥ 1 and interval_s > 0"):
        DecayingReserve(**wrong)  # type: ignore[arg-type]


def test_the_bounds_are_allowed() -> None:
    assert DecayingReserve(start=1.0, least=0.0, steps=1).interval_s == 0.2
    assert DecayingReserve(start=0.5, least=0.5)._decay == 0.0
