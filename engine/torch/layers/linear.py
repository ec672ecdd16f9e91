"""A projection y = x·W (+ bias) in the memory layouts that suit its batch sizes.

On a CPU with float32 there are two: oneDNN multiplies by a weight packed once into its own blocks, which takes longer
to call and is then mostly faster; BLAS by a plain one. From how many rows on packing pays depends on the shape, on the
machine and on torch's threads. So it is measured when the first weight of a shape is loaded, and holds for as long as
the process lives: equal numbers of rows go through the same kernel. Another process may find otherwise; its results
then differ in their last bits, as those of different batch sizes do.

With bfloat16 packing always pays, where the CPU has AVX-512. On a GPU, and with float16, which oneDNN packs on few
CPUs, weights stay as they are.

oneDNN also compiles a kernel for each number of rows that it has not met (0.5 ms a shape), and prefill chunks come in
all sizes: many rows are padded to a few sizes, lest every new chunk stall the streams beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

choices: list[str] = []
"""Choices made in this process for this machine, and their reasons, for the log."""

LARGE = 1_000_000  # elements of a weight from which it is always packed: two layouts would be too much memory
SMALL = 30_000  # elements up to which it does not matter
WORTH_A_CALL = 500_000  # multiply-adds from which to pack where it is not measured
NEVER = sys.maxsize
ROWS = (1, 2, 4, 8, 16, 32)  # at which both layouts are measured

CLEAR = 1.05  # by so much must the measured choice be better than the estimated one

_ELEMENTS, _ROUNDS, _MOST_S = 200_000, 3, 0.03

_measured: dict[tuple[int, int, int], int] = {}  # by inputs, outputs, threads


class Linear:
    """weight: [out, in], as models store it; bias: [out] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.outputs, self.inputs = weight.shape
        self._bias = bias
        self._packed_from = NEVER
        if _packable(weight):
            float32 = weight.dtype == torch.float32
            self._packed_from = packed_from(self.inputs, self.outputs) if float32 else 1
        self._packed = None if self._packed_from == NEVER else _pack(weight)
        self._plain = None if self._packed_from == 1 else _transposed(weight)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, in] → [T, out], plus `residual` [T, out]."""
        rows, plain = len(x), self._plain
        # Packed weights alone serve a step without logits, too.
        if plain is None or rows >= self._packed_from:
            padding = 0 if rows <= 32 else -rows % (8 if rows <= 128 else 32)
            y = _packed_product(F.pad(x, (0, 0, 0, padding)) if padding else x, self._packed, self._bias)
            if padding:
                y = y[:rows]
            return y if residual is None else y.add_(residual)
        if residual is not None:
            y = torch.addmm(residual, x, plain)
            return y if self._bias is None else y.add_(self._bias)
        return torch.mm(x, plain) if self._bias is None else torch.addmm(self._bias, x, plain)


def packed_from(inputs: int, outputs: int) -> int:
    """Rows from which weights of this shape are packed, with as many threads as torch has here."""
    size = inputs * outputs
    if size >= LARGE:
        return 1
    estimate = max(2, -(-WORTH_A_CALL // size))
    if size <= SMALL:
        return estimate
    key = inputs, outputs, torch.get_num_threads()
    if key not in _measured:
        begin = time.perf_counter()
        times = _measure(inputs, outputs)
        _measured[key] = rows = estimate if times is None else crossover(times, estimate)
        when = "never" if rows == NEVER else f"from {rows} rows"
        how = "estimated: the machine is too busy to measure it within" if times is None else "measured in"
        spent_ms = 1e3 * (time.perf_counter() - begin)
        choices.append(
            "projections from {} to {}, {} threads: packed {} ({} {:.0f} ms)".format(
                *key, when, how, spent_ms
            )
        )
    return _measured[key]


def crossover(times: list[tuple[float, float]], estimate: int) -> int:
    """Rows from which to pack so that the least is lost in all, every number of rows counting alike; the estimate where
    it is about as good. times: seconds (plain, packed) at each of ROWS."""

    def loss(first: int) -> float:
        return sum(pair[rows >= first] / min(pair) for rows, pair in zip(ROWS, times, strict=True))

    best = min((*ROWS, NEVER), key=loss)
    return best if loss(estimate) > CLEAR * loss(best) else estimate


@torch.inference_mode()
def _measure(inputs: int, outputs: int) -> list[tuple[float, float]] | None:
    """Return the least times of a few runs for `crossover`, as other load on the machine only adds to them; None if it
    adds so much that it takes too long. Several weights take turns, as layers do: a small one alone would be read from
    a nearer cache than it ever is."""
    weights = [torch.randn(outputs, inputs) for _ in range(-(-_ELEMENTS // (inputs * outputs)))]
    layouts: list[tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = [
        (torch.mm, [w.t().contiguous() for w in weights]),
        (_packed_product, [_pack(w) for w in weights]),
    ]
    # what others take of the machine does not count, as long as no thread waits for another
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = []
    deadline = clock() + _MOST_S
    for rows in ROWS:
        x = torch.randn(rows, inputs)
        least = [float("inf"), float("inf")]
        for turn in range(_ROUNDS + 1):
            for i, (product, copies) in enumerate(layouts):
                begin = clock()
                for copy in copies:
                    product(x, copy)
                now = clock()
                if now > deadline:
                    return None
                if turn:  # the first one compiles
                    least[i] = min(least[i], now - begin)
        times.append((least[0], least[1]))
    return times


def _packable(weight: torch.Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and (weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and _packs_bfloat16()))
    )


def _packs_bfloat16() -> bool:
    """Return whether oneDNN multiplies such numbers on this CPU, which it does from AVX-512 on."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _transposed(weight: torch.Tensor) -> torch.Tensor:
    """Return [in, out], laid out anew where BLAS is faster by that."""
    blas = weight.device.type == "cpu" and weight.dtype == torch.float32
    return weight.t().contiguous() if blas else weight.t()


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """The weight in oneDNN's blocked layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)


def _packed_product(
    x: torch.Tensor, packed: torch.Tensor | None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
