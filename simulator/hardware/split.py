"""Times of a split model's parts: the middle at a server, the two ends at a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tandem.simulator.hardware import roofline
from tandem.simulator.hardware.catalog import Operators, operators
from tandem.simulator.hardware.timer import MeasuredTimer, OperatorTimer, StepTimer

DrafterKind = Literal["adapter", "heads", "none"]
"""Kind of a split model's drafter. adapter: HAT's self-attention block, a token per pass. heads: Medusa's, a whole
draft in one pass."""
HEADS = 4
"""Number of Medusa heads, each a square matrix and a head: 591 million parameters for a model of 7 billion."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A device's part of a split model, in seconds.

    shallow: steps of the first layers, and of the adapter if there is one.
    head: logits, over rows.
    heads: time of a whole draft with draft heads; None if each token takes a pass.
    """

    shallow: StepTimer
    head: Callable[[float], float]
    heads: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredEnds(MeasuredTimer):
    """Measured ends: steps of the first layers and the adapter, as of any engine.

    head_s: seconds of the head.
    """

    head_s: float = 0.0

    def ends(self, drafter: DrafterKind) -> Ends:
        """Return the ends with these measured steps, for any drafter."""
        return Ends(self, lambda _: self.head_s, self.head_s if drafter == "heads" else None)


@lru_cache(maxsize=64)
def middle_timer(hardware: str, model: str, layers: int, data: Path | None = None) -> OperatorTimer:
    """Return the step timer of `layers` of a model's layers, between its ends. Raises UnknownHardware."""
    return _layers(operators(hardware, model, data), layers)


@lru_cache(maxsize=64)
def ends(hardware: str, model: str, first: int, drafter: DrafterKind, data: Path | None = None) -> Ends:
    """Return the times of the model's first layers, head and drafter. Raises UnknownHardware."""
    of = operators(hardware, model, data)
    shape = of.shape
    heads_s = None
    if drafter == "heads":
        parameters = HEADS * shape.hidden * (shape.hidden + shape.vocab)
        heads_s = roofline.matmul_s(of.gpu, parameters / of.ways, 1) + 3 * HEADS * roofline.LAUNCH_S
    return Ends(_layers(of, first, drafter == "adapter"), of.head, heads_s)


def _layers(of: Operators, layers: int, adapter: bool = False) -> OperatorTimer:
    """Return the step timer of some layers, and of an attention block of their shape without a feed-forward
    network."""
    hidden = of.shape.hidden

    def block_s(tokens: float) -> float:
        return roofline.matmul_s(of.gpu, 4 * hidden * hidden / of.ways, int(tokens)) + 5 * roofline.LAUNCH_S

    attended = layers + adapter
    return OperatorTimer(
        dense=lambda tokens: layers * of.layer(tokens) + adapter * block_s(tokens),
        head=lambda _: 0.0,
        host=of.host,
        decode=lambda batch, context: attended * of.decode(batch, context),
        prefill=lambda chunk, context: attended * of.prefill(chunk, context),
        sources=of.sources,
    )
