"""Acceptance sequences: from recorded runs of real models, or from a published pair's mean rate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np

from tandem.simulator.workload.request import unpack

SAMPLE = files("tandem.simulator") / "workload" / "samples" / "embedded_pair.jsonl"


class Recording(msgspec.Struct, frozen=True):
    """One answer of a real pair: its task family, and acceptance by output position as 0 and 1."""

    family: str
    acceptance: str


def bernoulli(lengths: Sequence[int], alpha: float, seed: int) -> list[bytes]:
    """Return sequences of the given lengths whose bits are independently 1 with probability alpha.

    Raises ValueError for an alpha outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be between 0 and 1, not {alpha}")
    bits = np.random.Generator(np.random.PCG64([seed, 1])).random(sum(lengths)) < alpha
    return _cut(bits.view(np.uint8).tobytes(), lengths)


def recorded(
    lengths: Sequence[int], seed: int, path: str | Path | None = None, family: str | None = None
) -> list[bytes]:
    """Return sequences of the given lengths, made of whole recorded ones in random order.

    path: a file that `python -m tandem.training.family.acceptance` wrote; None for the sample that comes with Tandem.
    family: only recordings of this task family. Raises ValueError if there are none.
    """
    pool = [unpack(r.acceptance) for r in recordings(path) if family in (None, r.family)]
    if not pool:
        raise ValueError(f"no recording of family {family!r}")
    random = np.random.Generator(np.random.PCG64([seed, 2]))
    sequences = []
    for length in lengths:
        parts, have = [], 0
        while have < length:
            parts.append(pool[random.integers(len(pool))])
            have += len(parts[-1])
        sequences.append(b"".join(parts)[:length])
    return sequences


@lru_cache(maxsize=8)
def recordings(path: str | Path | None = None) -> tuple[Recording, ...]:
    """Return all recordings of a file. Raises ValueError naming file and row."""
    source = SAMPLE if path is None else Path(path)
    decoder = msgspec.json.Decoder(Recording)
    found = []
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{source}: {error.strerror}") from None
    for row, line in enumerate(lines, 1):
        try:
            recording = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{source}, row {row}: {error}") from None
        if not recording.acceptance or recording.acceptance.strip("01"):
            raise ValueError(f"{source}, row {row}: acceptance must hold 0 and 1, and at least one of them")
        found.append(recording)
    return tuple(found)


def _cut(data: bytes, lengths: Sequence[int]) -> list[bytes]:
    sequences, start = [], 0
    for length in lengths:
        sequences.append(data[start : start + length])
        start += length
    return sequences
