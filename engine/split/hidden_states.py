"""Hidden states on the wire: as they are, in half the bytes, in a quarter with a scale for each token, or coded.

A device and a middle agree on a kind by its name: `SplitInfo.takes` has those that the middle takes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import numpy as np

from tandem.engine.base import InvalidRequest, Tensor
from tandem.engine.split import coded

Kind = Literal["float32", "float16", "bfloat16", "int8", "int6", "int4"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COMMON: Kind = "float16"
"""A kind that every middle takes."""

_SCALE = np.dtype("<f4")
_LARGEST = np.finfo(np.float16).max


def pack(hidden: np.ndarray, kind: Kind) -> Tensor:
    """Hidden states [n, hidden] float32 as a tensor. Of int8, each row is followed by its scale, a float32 in four
    columns: value = number · scale."""
    if kind in coded.BITS:
        return Tensor(hidden.shape, kind, memoryview(coded.encode(hidden, kind)))
    if kind == "float32":
        return Tensor.of(hidden.astype("<f4", copy=False))
    if kind == "float16":
        return Tensor.of(hidden.clip(-_LARGEST, _LARGEST).astype("<f2"))
    if kind == "bfloat16":
        bits = np.ascontiguousarray(hidden, "<f4").view("<u4")
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to the nearest, of two to the even one
        return Tensor(hidden.shape, kind, Tensor.of(rounded.astype("<u2")).data)
    scale = np.maximum(np.abs(hidden).max(axis=1, keepdims=True, initial=0.0), 1e-30) / 127.0
    numbers = np.rint(hidden / scale).astype(np.int8)
    return Tensor.of(np.hstack([numbers, scale.astype(_SCALE).view(np.int8)]))


def unpack(packed: Tensor, hidden: int) -> np.ndarray:
    """The hidden states of `pack`, [n, hidden] float32. Raises InvalidRequest for any other tensor."""
    columns = hidden + _SCALE.itemsize if packed.dtype == "int8" else hidden
    if packed.dtype not in KINDS or len(packed.shape) != 2 or packed.shape[1] != columns:
        raise InvalidRequest(
            f"hidden states are [positions, {columns}] in {', '.join(KINDS)}, not {packed.shape} {packed.dtype}"
        )
    if packed.dtype in coded.BITS:
        return coded.decode(packed.data, packed.shape[0], hidden)
    if packed.dtype == "bfloat16":
        bits = Tensor(packed.shape, "uint16", packed.data).numpy()
        return (bits.astype("<u4") << 16).view("<f4")
    values = packed.numpy()
    if packed.dtype != "int8":
        return values.astype(np.float32, copy=False)
    scale = np.ascontiguousarray(values[:, hidden:]).view(_SCALE)
    return values[:, :hidden] * scale


def row_bytes(hidden: int, kind: Kind) -> int:
    """Return the bytes of a token's hidden states on the wire; of a coded kind, at most."""
    if kind in coded.BITS:
        return coded.row_bytes(hidden, kind)
    return pack(np.zeros((1, hidden), np.float32), kind).data.nbytes


def back(kind: Kind) -> Kind:
    """Return the kind of what a middle sends back: coded states are answered in 16 bits, as few of them come back and
    the next token is chosen by them."""
    return COMMON if kind in coded.BITS else kind


class Codec(NamedTuple):
    """Conversion of hidden states to tensors and back, as `pack` and `unpack`."""

    pack: Callable[[np.ndarray, Kind], Tensor]
    unpack: Callable[[Tensor, int], np.ndarray]


CODEC = Codec(pack, unpack)
