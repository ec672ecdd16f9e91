"""Hidden states survive the wire, exactly or within what their kind allows: one contract for all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tandem.engine.base import InvalidRequest, Tensor
from tandem.engine.split import coded
from tandem.engine.split.hidden_states import COMMON, KINDS, Kind, back, pack, row_bytes, unpack

HIDDEN = 5
rows = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 4), st.just(HIDDEN)),
    elements=st.floats(-60000.0, 60000.0, width=32),
)


def bound(hidden: np.ndarray, kind: Kind) -> np.ndarray:
    """Return the largest error that a kind may make, by number."""
    size = np.abs(hidden)
    largest, mean = size.max(axis=1, keepdims=True, initial=0.0), np.zeros((len(hidden), 1))
    if hidden.size:
        mean = size.mean(axis=1, keepdims=True, dtype=np.float64)
    half_step = np.e * mean / 2 ** coded.BITS.get(kind, 6)
    bounds = {
        "float32": 0.0 * size,
        "float16": size / 2048 + 2**-25,
        "bfloat16": size / 256 + 1e-38,
        "int8": largest / 127 * 0.5001 + 1e-30,
    }
    found: np.ndarray = bounds.get(kind, half_step * 1.009 + size * 1e-6 + 1e-30)
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(hidden=rows)
def test_errors_are_bounded(kind: Kind, hidden: np.ndarray) -> None:
    packed = pack(hidden, kind)
    there = unpack(packed, HIDDEN)
    assert (packed.shape[0], there.shape, there.dtype) == (len(hidden), hidden.shape, np.float32)
    assert (np.abs(there - hidden) <= bound(hidden, kind)).all()


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


def states(name: str, rng: np.random.Generator) -> np.ndarray:
    """Return rows as models have them."""
    plain = rng.normal(size=(64, 512)).astype(np.float32)
    if name == "outliers":
        plain[:, :3] *= 200.0
    if name == "laplacian":
        plain = rng.laplace(size=plain.shape).astype(np.float32)
    return plain * np.exp(rng.normal(size=(64, 1))).astype(np.float32)


@pytest.mark.parametrize("name", ["normal", "laplacian", "outliers"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_as_long_as_is_said(kind: Kind, name: str) -> None:
    """Count as policies and simulations do; coded kinds take that at most, but for the table of the code."""
    hidden = states(name, np.random.default_rng(1))
    size, said = pack(hidden, kind).data.nbytes, len(hidden) * row_bytes(512, kind)
    if kind in coded.BITS:
        assert (0.5 if name == "outliers" else 0.9) * said < size <= 1.02 * said
        assert 8 * size / hidden.size <= 1.02 * float(kind[-1])
    else:
        assert size == said


def test_few_numbers_beyond_all_others_do_not_coarsen_these() -> None:
    hidden = states("outliers", np.random.default_rng(1))
    error = np.abs(unpack(pack(hidden, "int6"), 512) - hidden)
    beyond = np.abs(hidden) > 40 * np.abs(hidden).mean(axis=1, keepdims=True)
    assert beyond.any()
    assert not error[beyond].any(), "they are exact"
    by_largest = np.abs(unpack(pack(hidden, "int8"), 512) - hidden)
    assert error[:, 3:].mean() < by_largest[:, 3:].mean()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_row_takes(kind: Kind) -> None:
    sizes = {"float32": 4 * 64, "float16": 2 * 64, "bfloat16": 2 * 64, "int8": 64 + 4, "int6": 50, "int4": 34}
    assert row_bytes(64, kind) == sizes[kind]
    assert back(kind) == (COMMON if kind in coded.BITS else kind)


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
        ((2, 4), "int6", 0),
        ((2, 4), "int6", 2),
        ((2, 4), "int4", 40),
        ((2, 3), "int4", 40),
        ((2**31 - 1, 4), "int6", 40),
    ],
)
def test_anything_else_is_refused(shape: tuple[int, ...], dtype: str, size: int) -> None:
    with pytest.raises(InvalidRequest):
        unpack(Tensor(shape, dtype, memoryview(bytes(size))), 4)


@given(data=st.binary(max_size=60), cut=st.integers(1, 30))
def test_other_bytes_are_refused_or_states(data: bytes, cut: int) -> None:
    """Nothing else comes of them, nor more than was announced; so it is with a frame that was cut."""
    whole = bytes(pack(np.ones((2, HIDDEN), np.float32), "int6").data)
    for given_bytes in (data, whole[:-cut], whole + data):
        try:
            found = unpack(Tensor((2, HIDDEN), "int6", memoryview(given_bytes)), HIDDEN)
        except InvalidRequest:
            continue
        assert found.shape == (2, HIDDEN)
