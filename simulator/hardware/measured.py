"""Step times measured on a live engine, as a table in a file.

A file is JSON, one object: `model`, `machine` (cores, threads, weights and engine that it was measured with) and
`steps`, a list of `[sequences, positions of each, cached tokens of each, seconds]`. Those of the folder
`simulator/hardware/measured` are known by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np

from tandem.simulator.hardware.interpolate import Curve
from tandem.simulator.hardware.profiles import UnknownHardware

FOLDER = Path(str(files("tandem.simulator"))) / "hardware" / "measured"


class MeasuredStep(msgspec.Struct, frozen=True, array_like=True):
    """A measured step.

    sequences: number of sequences.
    positions: of each.
    cached: tokens of each before them.
    seconds: that the step took.
    """

    sequences: int
    positions: int
    cached: int
    seconds: float

    @property
    def attended(self) -> int:
        """Pairs of a position and a cached token."""
        return self.sequences * self.positions * self.cached


class TableTimer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """Step timer: seconds over the positions of a step, whatever sequences they are of, interpolated; and seconds for
    each pair of a position and a cached token that it attends to.

    model, machine: what was measured, and on what.
    steps: what was measured.
    """

    model: str
    machine: str
    steps: list[MeasuredStep]

    def __post_init__(self) -> None:
        if not self.steps or any(
            step.seconds <= 0 or step.sequences * step.positions < 1 for step in self.steps
        ):
            raise ValueError(
                "steps: at least one is needed, each of a position or more and of more than 0 seconds"
            )

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        chunks = sum(chunk for chunk, _ in prefills)
        attended = (tokens - chunks) * context / max(1, sequences)
        attended += sum(chunk * before for chunk, before in prefills)
        return self._over_positions.at(tokens) + self._attended_s * attended

    @cached_property
    def _attended_s(self) -> float:
        """Seconds a pair, by least squares over steps that differ in their cached tokens alone."""
        by_shape: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for step in self.steps:
            by_shape.setdefault((step.sequences, step.positions), []).append((step.attended, step.seconds))
        around = np.concatenate(
            [np.asarray(points) - np.mean(points, axis=0) for points in by_shape.values()]
        )
        pairs, seconds = around.T
        return max(0.0, float(pairs @ seconds / (pairs @ pairs))) if pairs.any() else 0.0

    @cached_property
    def _over_positions(self) -> Curve:
        """Seconds over positions, without cached tokens."""
        return Curve(
            (step.sequences * step.positions, max(0.0, step.seconds - self._attended_s * step.attended))
            for step in self.steps
        )

    def error(self) -> float:
        """Return the mean relative error of the timer on its own table."""
        errors = [
            self.step_s(s.sequences * s.positions, s.sequences, s.sequences * s.cached) / s.seconds - 1
            for s in self.steps
        ]
        return float(np.mean(np.abs(errors)))


@lru_cache(maxsize=32)
def table(name: str) -> TableTimer:
    """Return the table of a .json file, or one that is known by name. Raises UnknownHardware."""
    path = Path(name) if name.endswith(".json") else FOLDER / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=TableTimer)
    except OSError:
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.json")))
        raise UnknownHardware(f"no table {name!r}; there are {known}, or name a .json file") from None
    except msgspec.MsgspecError as error:
        raise UnknownHardware(f"{path}: {error}") from None
