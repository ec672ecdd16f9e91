"""Hidden states survive the wire, exactly or within what their kind allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tandem.engine.base import InvalidRequest, Tensor
from tandem.engine.split.hidden_states import KINDS, Kind, pack, row_bytes, unpack

HIDDEN = 5
rows = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 4), st.just(HIDDEN)),
    elements=st.floats(-60000.0, 60000.0, width=32),
)


@given(rows)
def test_float32_is_exact(hidden: np.ndarray) -> None:
    assert unpack(pack(hidden, "float32"), HIDDEN).tobytes() == hidden.tobytes()


@given(rows)
def test_float16_rounds_to_the_nearest(hidden: np.ndarray) -> None:
    assert (unpack(pack(hidden, "float16"), HIDDEN) == hidden.astype(np.float16)).all()


@given(rows)
def test_bfloat16_rounds_as_torch_does(hidden: np.ndarray) -> None:
    expected = torch.from_numpy(hidden).to(torch.bfloat16).float().numpy()
    assert (unpack(pack(hidden, "bfloat16"), HIDDEN) == expected).all()


@given(rows)
def test_int8_is_within_half_a_step_of_the_rows_largest(hidden: np.ndarray) -> None:
    largest = np.abs(hidden).max(axis=1, keepdims=True, initial=0.0)
    error = np.abs(unpack(pack(hidden, "int8"), HIDDEN) - hidden)
    assert (error <= largest / 127 * 0.5001 + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_takes(kind: Kind) -> None:
    expected = {"float32": 4 * 64, "float16": 2 * 64, "bfloat16": 2 * 64, "int8": 64 + 4}[kind]
    assert row_bytes(64, kind) == expected
    assert pack(np.ones((3, 64), np.float32), kind).data.nbytes == 3 * expected


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(kind: Kind) -> None:
    assert unpack(pack(np.zeros((0, HIDDEN), np.float32), kind), HIDDEN).shape == (0, HIDDEN)


def test_beyond_float16_is_its_largest() -> None:
    hidden = np.array([[1e6, -1e6]], np.float32)
    assert unpack(pack(hidden, "float16"), 2).tolist() == [[65504.0, -65504.0]]


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((2, 4), "float64", 64),
        ((2, 4), "nonsense", 32),
        ((8,), "float32", 32),
        ((2, 3), "float32", 24),
        ((2, 4), "float32", 31),
        ((2, 4), "bfloat16", 15),
        ((2, 4), "int8", 8),
    ],
)
def test_anything_else_is_refused(shape: tuple[int, ...], dtype: str, size: int) -> None:
    with pytest.raises(InvalidRequest):
        unpack(Tensor(shape, dtype, memoryview(bytes(size))), 4)
