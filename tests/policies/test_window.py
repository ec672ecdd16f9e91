from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.window import StaticWindow, WindowState, window

share = st.floats(0.0, 1.0)
states = st.builds(WindowState, share, st.floats(0, 10), st.floats(0, 10), share, st.integers(0, 16))


@pytest.mark.parametrize("name", list(window))
@given(states=st.lists(states, max_size=20))
def test_contract(name: str, states: list[WindowState]) -> None:
    policy = window.create(name)
    for state in states:
        chosen = policy.choose(state)
        assert isinstance(chosen, int)
        assert chosen >= 1


def test_static() -> None:
    assert StaticWindow(7).choose(WindowState(0.1, 0.0, 0.0, 0.0, 3)) == 7
    with pytest.raises(ValueError, match="at least 1"):
        StaticWindow(0)
