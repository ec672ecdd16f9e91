"""Rows against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.core.split.rows import Rows

actions = st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 9)), max_size=20)


@given(st.integers(0, 5), actions)
def test_rows_are_what_was_put_first(start: int, steps: list[tuple[bool, int, int]]) -> None:
    rows, held, made = Rows(start), list[float](), 0.0
    for put, position, count in steps:
        position = min(start + position, rows.end)
        if put:
            new = [made + i for i in range(count)]
            made += count
            rows.put(position, np.array(new, np.float32).reshape(-1, 1).repeat(2, axis=1))
            held += new[len(held) - (position - start) :]
        else:
            rows.cut(position)
            del held[position - start :]
        assert rows.end == start + len(held)
        assert rows.between(start, rows.end)[:, :1].ravel().tolist() == held
        assert rows.between(start + 1, rows.end + 3)[:, 1:].ravel().tolist() == held[1:]


def test_what_is_given_out_is_a_copy() -> None:
    rows = Rows()
    rows.put(0, np.zeros((2, 3), np.float32))
    rows.between(0, 2)[:] = 1.0
    assert not rows.between(0, 2).any()
