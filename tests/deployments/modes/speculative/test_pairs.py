"""Histories of pairs: who shares one, and whose window closes itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.deployments.modes.speculative.pairs import Pairs
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.window import StaticWindow

TARGET = EndpointInfo("verifier/0", "cloud:1", "verifier", vocabulary="large")
DEVICE = EndpointInfo("phone", "cafe:1", "device", vocabulary="large", device=True)


def after_useless_rounds(pair: PairHistory) -> int:
    """Return the window that a pair chooses whose drafts take ten of the target's steps, and are all rejected."""
    for _ in range(40):
        pair.note(4, 0, 1, 0.02, 0.2)
        pair.note_alone(32, 32 * 0.02)
    return pair.choose()


def test_a_pair_of_two_vocabularies_rests_where_drafting_does_not_pay() -> None:
    pairs = Pairs(lambda: StaticWindow(4))
    assert after_useless_rounds(pairs.of(DEVICE, TARGET)) == 4
    other = replace(DEVICE, name="old phone", vocabulary="small")
    assert after_useless_rounds(pairs.of(other, TARGET)) == 0


def test_a_device_keeps_its_pair_when_its_address_changes() -> None:
    pairs = Pairs(StaticWindow)
    there = pairs.of(DEVICE, TARGET)
    assert pairs.of(replace(DEVICE, address="home:2"), TARGET) is there
    assert pairs.named(("phone", TARGET.key)) is there
    assert pairs.of(replace(DEVICE, name="laptop"), TARGET) is not there


def test_a_pair_that_has_made_no_round_is_known_by_its_target_alone() -> None:
    pairs = Pairs(StaticWindow)
    near = replace(DEVICE, rtt_s=0.01)
    assert pairs.state(near, TARGET).rtt_s == 0.01
    seen = pairs.of(near, TARGET)
    assert pairs.state(near, TARGET).previous == 0
    seen.note(4, 3, 4, 0.02, 0.2)
    known = pairs.state(near, TARGET)
    assert known == seen.state()
    assert known.acceptance == 0.75


def test_pairs_of_a_target_share_what_is_known_of_it_and_the_links_of_both_count() -> None:
    pairs = Pairs(StaticWindow)
    far = replace(TARGET, rtt_s=0.03)
    phone, laptop = (replace(DEVICE, name=name, rtt_s=0.01) for name in ("phone", "laptop"))
    assert pairs.state(phone, far).rtt_s == pytest.approx(0.04)
    one, other = pairs.of(phone, far), pairs.of(laptop, far)
    assert one.rtt_s == pytest.approx(0.04)
    assert one.target is other.target
    assert pairs.of(phone, replace(far, address="cloud:2")).target is not one.target
    one.note(4, 2, 3, 0.02, 0.2)
    one.target.queue = 0.5
    newcomer = pairs.state(replace(DEVICE, name="tablet", rtt_s=0.01), far)
    assert (newcomer.queue, newcomer.prior > 0) == (0.5, True), (
        "it is told what the target's others have seen"
    )
    assert pairs.named(("unknown", "nowhere")).rtt_s == 0.0
