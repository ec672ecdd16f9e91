"""Routing by difficulty, PICE's baseline; the contract of its family is in
tests/policies/routing/test_collaboration.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.policies.routing.collaboration import Collaboration
from tandem.policies.routing.difficulty import ByDifficulty
from tests.policies.routing.test_collaboration import BUSY, FAR, NEAR, state

POLICY = ByDifficulty(longest=100)


def test_easy_questions_go_to_the_least_busy_device_and_difficult_ones_to_the_cloud() -> None:
    asked = state(POLICY, None, None, [BUSY, FAR, NEAR])
    assert POLICY.choose(replace(asked, max_tokens=100)) == Collaboration("device", "near")
    assert POLICY.choose(replace(asked, max_tokens=101)) == Collaboration("cloud", None)


def test_without_a_device_all_go_to_the_cloud() -> None:
    asked = state(POLICY, None, None, [])
    assert POLICY.choose(replace(asked, max_tokens=1)) == Collaboration("cloud", None)
    asked = replace(state(POLICY, None, None, [NEAR]), modes={"cloud": asked.modes["cloud"]})
    assert POLICY.choose(replace(asked, max_tokens=1)) == Collaboration("cloud", None)


def test_what_the_client_wants_it_gets() -> None:
    for mode, device, expected in (
        ("cloud", None, Collaboration("cloud", None)),
        ("race", None, Collaboration("race", "near")),
        (None, "far", Collaboration("speculative", "far")),
    ):
        asked = replace(state(POLICY, mode, device, [FAR, NEAR]), max_tokens=1)
        assert POLICY.choose(asked) == expected


def test_a_length_is_no_negative_number() -> None:
    with pytest.raises(ValueError, match="below 0"):
        ByDifficulty(-1)


def test_with_a_length_of_nothing_all_questions_are_difficult() -> None:
    asked = state(ByDifficulty(longest=0), None, None, [NEAR])
    assert ByDifficulty(longest=0).choose(replace(asked, max_tokens=1)) == Collaboration("cloud", None)


def test_a_quarter_of_a_thousand_tokens_are_easy_unless_it_is_said() -> None:
    asked = state(ByDifficulty(), None, None, [NEAR])
    for tokens, mode in ((256, "device"), (257, "cloud")):
        assert ByDifficulty().choose(replace(asked, max_tokens=tokens)).mode == mode
