"""The optimiser of every step of the tuning."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from tandem.training.family.train import CLIP, schedule


class Descent:
    """AdamW with warm-up and cosine, and clipped gradients."""

    def __init__(self, learnt: Iterable[nn.Parameter], rate: float, steps: int) -> None:
        """rate: the highest learning rate."""
        self.learnt, self.rate, self.steps, self.done = list(learnt), rate, steps, 0
        self._optimiser = torch.optim.AdamW(self.learnt, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, loss: Tensor) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learnt, CLIP)
        for group in self._optimiser.param_groups:
            group["lr"] = self.rate * schedule(self.done, self.steps)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self.done += 1
