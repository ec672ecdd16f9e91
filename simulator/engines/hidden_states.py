"""Simulated hidden states: the rows and bytes on a link of real ones, without content."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tandem.engine.base import Tensor
from tandem.engine.split.hidden_states import Codec, Kind, row_bytes

_NOTHING = np.zeros(1, np.uint8)
_row_bytes = lru_cache(row_bytes)


def rows(count: int) -> np.ndarray:
    """Return `count` rows of no width."""
    return np.empty((count, 0), np.float32)


def codec(hidden: int) -> Codec:
    """Return a codec between rows of no width and tensors of width `hidden`, whose bytes take no memory."""

    def pack(hidden_states: np.ndarray, kind: Kind) -> Tensor:
        count = len(hidden_states)
        data = np.broadcast_to(_NOTHING, (count * _row_bytes(hidden, kind),)).data
        return Tensor((count, hidden), kind, data)

    return Codec(pack, lambda packed, _: rows(packed.shape[0]))
