"""Root mean square normalisation: x / √(mean(x²) + eps) · weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RMSNorm:
    """Over the last dimension, of `weight`'s size.

    On a CPU torch computes it in a dozen operators, which cost more than the arithmetic where rows are few. Here they
    are four, in float32: x / √(‖x‖² + n·eps) · √n·weight.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._weight, self._eps, size = weight, eps, len(weight)
        self._by_length = weight.device.type == "cpu"
        self._scaled = weight.float() * size**0.5
        self._least = torch.tensor((size * eps) ** 0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., n] → the same shape."""
        if not self._by_length:
            if self._weight.dtype != x.dtype:
                return F.rms_norm(x.float(), x.shape[-1:], self._weight, self._eps).to(x.dtype)
            return F.rms_norm(x, x.shape[-1:], self._weight, self._eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return (x / length.hypot_(self._least)).mul_(self._scaled).to(x.dtype)
