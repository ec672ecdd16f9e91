"""How long the parts of a split model take: the middle at a server, the two ends at a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tandem.simulator.hardware import roofline
from tandem.simulator.hardware.catalog import Operators, operators
from tandem.simulator.hardware.timer import MeasuredTimer, OperatorTimer, StepTimer

Drafter = Literal["adapter", "heads", "none"]
"""adapter: HAT's self-attention block, a token a pass. heads: Medusa's, which give all of a draft in one pass."""
HEADS = 4
"""Medusa's, each a square matrix and a head of its own: 591 million parameters for a model of 7 billion."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A device's part of a split model, in seconds.

    shallow: steps of the first layers, and of the adapter if there is one.
    head: logits, over rows.
    heads: what gives a whole draft; None where each of its tokens takes a pass of its own.
    """

    shallow: StepTimer
    head: Callable[[float], float]
    heads: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredEnds(MeasuredTimer):
    """The same as measured: steps of the first layers and the adapter, as of any engine.

    head_s: of the head, seconds.
    """

    head_s: float = 0.0

    def ends(self, drafter: Drafter) -> Ends:
        """With so measured steps, whatever drafts."""
        return Ends(self, lambda _: self.head_s, self.head_s if drafter == "heads" else None)


@lru_cache(maxsize=64)
def middle_timer(hardware: str, model: str, layers: int, data: Path | None = None) -> OperatorTimer:
    """So many of a model's layers between its ends. Raises UnknownHardware."""
    return _layers(operators(hardware, model, data), layers)


@lru_cache(maxsize=64)
def ends(hardware: str, model: str, first: int, drafter: Drafter, data: Path | None = None) -> Ends:
    """The model's first layers and its head, and what drafts with them. Raises UnknownHardware."""
    of = operators(hardware, model, data)
    shape = of.shape
    heads_s = None
    if drafter == "heads":
        parameters = HEADS * shape.hidden * (shape.hidden + shape.vocab)
        heads_s = roofline.matmul_s(of.gpu, parameters / of.ways, 1) + 3 * HEADS * roofline.LAUNCH_S
    return Ends(_layers(of, first, drafter == "adapter"), of.head, heads_s)


def _layers(of: Operators, layers: int, adapter: bool = False) -> OperatorTimer:
    """Some layers, and an attention block of the same shape without a feed-forward network."""
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
