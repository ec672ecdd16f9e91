from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.routing.collaboration import (
    ANY_DEVICE,
    Collaboration,
    CollaborationPolicy,
    CollaborationState,
    DevicePart,
    DeviceView,
    Reason,
    collaboration,
)

MODES = {
    "cloud": DevicePart.NEVER,
    "device": DevicePart.MUST,
    "speculative": DevicePart.MAY,
    "race": DevicePart.MUST,
}
devices_ = st.lists(
    st.builds(DeviceView, st.sampled_from("abcdef"), st.floats(0, 1), st.integers(0, 5)),
    max_size=5,
    unique_by=lambda d: d.name,
)
FAR, NEAR, BUSY = DeviceView("far", 0.1, 0), DeviceView("near", 0.01, 0), DeviceView("busy", 0.0, 2)


def state(
    policy: CollaborationPolicy,
    mode: str | None,
    device: str | tuple[str, ...] | None,
    devices: Sequence[DeviceView],
) -> CollaborationState:
    def best(among: Sequence[str] | None) -> DeviceView | None:
        there = [d for d in devices if among is None or d.name in among]
        return min(there, key=policy.preference, default=None)

    return CollaborationState(mode, device, MODES, best)


@pytest.mark.parametrize("name", list(collaboration))
@given(
    mode=st.sampled_from([None, *MODES]),
    device=st.sampled_from([None, ANY_DEVICE, "named", ("a", "b"), ("x", "y")]),
    devices=devices_,
)
def test_contract(
    name: str, mode: str | None, device: str | tuple[str, ...] | None, devices: list[DeviceView]
) -> None:
    policy = collaboration.create(name)
    chosen = policy.choose(state(policy, mode, device, devices))
    assert chosen.mode in MODES
    if mode is not None:
        assert chosen.mode == mode, "an explicit mode is followed"
    there = {d.name for d in devices}
    if MODES[chosen.mode] is DevicePart.NEVER:
        assert chosen.device is None
    elif device == "named":
        assert chosen.device == "named", "an explicit device is followed"
    elif isinstance(device, tuple):
        assert chosen.device in device
        assert chosen.device in there or not there & set(device)
    elif chosen.device not in (None, ANY_DEVICE):
        assert chosen.device in there


@pytest.mark.parametrize("name", list(collaboration))
@given(devices=devices_)
def test_no_two_devices_are_alike(name: str, devices: list[DeviceView]) -> None:
    """Or chance would decide between them."""
    policy = collaboration.create(name)
    assert len({policy.preference(d) for d in devices}) == len(devices)


@pytest.mark.parametrize(
    ("mode", "device", "expected"),
    [
        (None, None, Collaboration("cloud", None)),
        (None, "far", Collaboration("speculative", "far")),
        (None, ANY_DEVICE, Collaboration("speculative", "near")),
        (None, ("busy", "far"), Collaboration("speculative", "far")),
        ("speculative", None, Collaboration("speculative", None)),
        ("speculative", "busy", Collaboration("speculative", "busy")),
        ("device", None, Collaboration("device", "near")),
        ("race", None, Collaboration("race", "near")),
        ("cloud", "near", Collaboration("cloud", None)),
    ],
)
def test_explicit(mode: str | None, device: str | tuple[str, ...] | None, expected: Collaboration) -> None:
    policy = collaboration.create("explicit")
    assert policy.choose(state(policy, mode, device, [BUSY, FAR, NEAR])) == expected


def test_of_several_names_none_of_which_is_registered_the_first_is_waited_for() -> None:
    policy = collaboration.create("explicit")
    chosen = policy.choose(state(policy, "speculative", ("x", "y"), [NEAR]))
    assert chosen == Collaboration("speculative", "x")


def test_a_request_that_says_nothing_has_no_reader_and_no_budget() -> None:
    asked = CollaborationState(None, None, MODES, lambda _: None)
    assert (asked.prompt_tokens, asked.max_tokens, asked.reader_rate, asked.budget) == (1, 256, 0.0, None)
    assert (NEAR.prefill_token_s, NEAR.decode_token_s, NEAR.full) == (0.0, 0.0, False)
    reason = Reason(0.5)
    assert (reason.candidates, reason.second_loss, reason.tried, reason.missed) == (1, 0.0, False, False)
