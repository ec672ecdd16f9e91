"""A projection y = x·W (+ bias) in the memory layouts that suit its batch sizes.

On a CPU with float32, oneDNN multiplies by a weight packed once into its own blocks 1.5–2.5 times as fast as
BLAS does by a plain one, but each call costs about 12 µs more: so small products stay with BLAS.
oneDNN also compiles a kernel for each number of rows that it has not met (0.4 ms a shape), and prefill chunks
come in all sizes: rows are padded to a few sizes, lest every new chunk stall the streams beside it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# Multiply-adds of a call from which the packed weight is the faster one; measured with 2 threads.
WORTH_A_CALL = 500_000
# Elements of a weight from which the packed one is faster at any batch size: the plain one is not kept.
LARGE = 1_000_000


class Linear:
    """weight: [out, in], as models store it; bias: [out] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.inputs, self.outputs = weight.shape[1], weight.shape[0]
        self._bias = bias
        self._packed = _pack(weight)
        large = self._packed is not None and weight.numel() >= LARGE
        self._plain = None if large else weight.t().contiguous()

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, in] → [T, out], plus `residual` [T, out]."""
        if self._plain is None or (
            self._packed is not None and len(x) > 1 and len(x) * self.inputs * self.outputs >= WORTH_A_CALL
        ):
            rows = len(x)
            if rows > 1 and (padding := -rows % (8 if rows <= 32 else 32)):
                x = F.pad(x, (0, 0, 0, padding))
            y = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")[:rows]
            return y if residual is None else y.add_(residual)
        if residual is not None:
            y = torch.addmm(residual, x, self._plain)
            return y if self._bias is None else y.add_(self._bias)
        return torch.mm(x, self._plain) if self._bias is None else torch.addmm(self._bias, x, self._plain)


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's blocked layout; None where there is no such thing to be had."""
    usable = (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32) if usable else None
