"""`predict(op, shape, hardware)`, DSD's interface: one operation of a whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from simulator.hardware.catalog import timer

Op = Literal["prefill", "decode", "verify"]


class Shape(NamedTuple):
    """model; batch: sequences; tokens: new positions of each (a prompt's chunk, a window, 1); context: tokens
    cached before them, of each."""

    model: str
    batch: int = 1
    tokens: int = 1
    context: int = 0


def predict(op: Op, shape: Shape, hardware: str, data: Path | None = None) -> float:
    """Seconds of one step that does nothing else. Raises UnknownHardware, ValueError for an unknown op."""
    steps = timer(hardware, shape.model, data)
    positions = shape.batch * shape.tokens
    if op == "prefill":
        return steps.step_s(positions, 0, 0, [(shape.tokens, shape.context)] * shape.batch)
    if op in ("decode", "verify"):
        return steps.step_s(positions, shape.batch, shape.batch * shape.context)
    raise ValueError(f"no operation {op!r}; there are: prefill, decode, verify")
