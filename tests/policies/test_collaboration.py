from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.collaboration import (
    ANY_DEVICE,
    MODES,
    Collaboration,
    CollaborationState,
    DeviceView,
    ExplicitElseCloud,
    collaboration,
)

devices_ = st.lists(
    st.builds(DeviceView, st.sampled_from("abcdef"), st.floats(0, 1), st.integers(0, 5)),
    max_size=5,
    unique_by=lambda d: d.name,
)
FAR, NEAR, BUSY = DeviceView("far", 0.1, 0), DeviceView("near", 0.01, 0), DeviceView("busy", 0.0, 2)


@pytest.mark.parametrize("name", list(collaboration))
@given(
    mode=st.sampled_from([None, *MODES]),
    device=st.sampled_from([None, ANY_DEVICE, "named"]),
    devices=devices_,
)
def test_contract(name: str, mode: str | None, device: str | None, devices: list[DeviceView]) -> None:
    chosen = collaboration.create(name).choose(CollaborationState(mode, device, 1, 1, devices))
    assert chosen.mode in MODES
    if mode is not None:
        assert chosen.mode == mode, "an explicit mode is followed"
    if chosen.mode == "cloud":
        assert chosen.device is None
    elif device == "named":
        assert chosen.device == "named", "an explicit device is followed"
    elif chosen.device not in (None, ANY_DEVICE):
        assert chosen.device in {d.name for d in devices}


@pytest.mark.parametrize(
    ("mode", "device", "expected"),
    [
        (None, None, Collaboration("cloud", None)),
        (None, "far", Collaboration("speculative", "far")),
        (None, ANY_DEVICE, Collaboration("speculative", "near")),
        ("speculative", None, Collaboration("speculative", None)),
        ("speculative", "busy", Collaboration("speculative", "busy")),
        ("device", None, Collaboration("device", "near")),
        ("cloud", "near", Collaboration("cloud", None)),
    ],
)
def test_explicit(mode: str | None, device: str | None, expected: Collaboration) -> None:
    state = CollaborationState(mode, device, 1, 1, [BUSY, FAR, NEAR])
    assert ExplicitElseCloud().choose(state) == expected
