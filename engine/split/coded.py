"""Quantised hidden states in an entropy code: at most about as many bits a number as the kind's name says.

A row's step is a fixed share of its mean magnitude. Of all distributions with that mean the Laplacian has the largest
entropy, log2(2e · mean / step) bits for a fine step, so the share bounds what an order-0 code needs, whatever the row
looks like. A few channels that are far larger than the others, as real models have, move the mean little; numbers
beyond 127 steps are sent exactly. The code is DEFLATE's Huffman code without matches, of the standard library.

A row's step is the upper half of a float32. The layout is: steps, code, exact numbers.
"""

from __future__ import annotations

import zlib
from math import ceil, e

import numpy as np

from tandem.engine.base import InvalidRequest

BITS = {"int6": 5.9, "int4": 3.9}
"""Bound of a number's bits, by kind."""
EXACT = -128
"""Symbol of a number that is sent exactly."""
_STEP, _NUMBER = np.dtype("<u2"), np.dtype("<f4")
_LEAST = 1e-30


def encode(hidden: np.ndarray, kind: str) -> bytes:
    """Encode hidden states, [n, hidden] float32, which are finite."""
    rows = np.asarray(hidden, np.float32)
    mean = np.abs(rows).mean(axis=1, dtype=np.float64) if rows.size else np.zeros(len(rows))
    halves = _halves(np.maximum(mean * (2 * e / 2 ** BITS[kind]), _LEAST))
    steps = _steps(halves)
    numbers = np.rint(rows / steps)
    exact = np.abs(numbers) > -EXACT - 1
    symbols = np.where(exact, EXACT, numbers).astype(np.int8)
    code = zlib.compressobj(wbits=-15, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = code.compress(symbols.tobytes()) + code.flush()
    return halves.tobytes() + coded + rows[exact].astype(_NUMBER).tobytes()


def decode(data: memoryview, rows: int, hidden: int) -> np.ndarray:
    """Return the hidden states of `encode`, [rows, hidden] float32. Raise InvalidRequest for anything else."""
    count, begins = rows * hidden, rows * _STEP.itemsize
    code = zlib.decompressobj(wbits=-15)
    try:
        text = code.decompress(data[begins:], count + 1)
    except zlib.error as error:
        raise InvalidRequest(f"these are no coded hidden states: {error}") from None
    symbols = np.frombuffer(text, np.int8)
    exact = symbols == EXACT
    rest = code.unused_data
    if len(data) < begins or not code.eof or len(symbols) != count or len(rest) != 4 * exact.sum():
        raise InvalidRequest(f"these are no coded hidden states of {rows} positions, {hidden} wide")
    numbers = symbols.astype(np.float32).reshape(rows, hidden)
    numbers *= _steps(np.frombuffer(data[:begins], _STEP))
    numbers[exact.reshape(rows, hidden)] = np.frombuffer(rest, _NUMBER)
    return numbers


def row_bytes(hidden: int, kind: str) -> int:
    """Return the bytes that a row takes at most, as part of a long text."""
    return ceil(hidden * BITS[kind] / 8) + _STEP.itemsize


def _halves(steps: np.ndarray) -> np.ndarray:
    """Return steps as the upper halves of float32, rounded up."""
    bits = np.ascontiguousarray(steps, _NUMBER).view("<u4")
    return (bits + 0xFFFF >> 16).astype(_STEP)


def _steps(halves: np.ndarray) -> np.ndarray:
    """Return the steps as a column."""
    return (halves.astype("<u4") << 16).view(_NUMBER)[:, None]
