"""Randomness without state: a uniform number is a function of (seed, output position, purpose).

So a request repeats its tokens when it is preempted and resumed, moved to another engine or retried,
whatever shares its batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """Independent streams at one position."""

    SAMPLE = 1  # the engine's own token
    ACCEPT = 2  # keep or reject a drafted token
    DRAFT = 3  # a drafted token


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Sequence[int], positions: Sequence[int], purpose: Purpose) -> np.ndarray:
    """Float64 numbers in [0, 1), one for each (seed, position)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        state = _mix(np.asarray(seeds, np.uint64) + _GOLDEN * np.uint64(purpose))
        state = _mix(state ^ (np.asarray(positions, np.uint64) + np.uint64(1)) * _GOLDEN)
    return (state >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
