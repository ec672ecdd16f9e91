"""Distillation of Λ: the model itself is frozen, and says at every position of an answer what the adapter should.

f_L, f_S: hidden states of the model and behind the adapter, after the final norm, which is what the output matrix H
gets. Before the norm a few large dimensions drown all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tandem.training.adapter.block import Adapter
from tandem.training.adapter.texts import Batch, Document
from tandem.training.family.muon import Muon
from tandem.training.family.train import CLIP, schedule

W_CE = 0.1
"""Weight of the cross-entropy in HAT's loss."""
VISITS, TOGETHER = 3, 25
"""Visits of each batch, and batches that take turns."""
KEPT_BYTES = 2**31
"""Largest frozen tensors of a whole corpus that are kept in memory, and so are computed only once."""


def kl(f_l: Tensor, f_s: Tensor, h_l: Tensor, h_s: Tensor) -> Tensor:
    """KL(H(f_L) ‖ H(f_S)): the tokens alone count, not the hidden states behind them."""
    return F.kl_div(h_s.log_softmax(-1), h_l.log_softmax(-1), reduction="batchmean", log_target=True)


def hat(f_l: Tensor, f_s: Tensor, h_l: Tensor, h_s: Tensor) -> Tensor:
    """HAT's equation (4): SmoothL1(f_L, f_S) + w_ce · CE(H(f_L), H(f_S))."""
    return F.smooth_l1_loss(f_s, f_l) + W_CE * F.cross_entropy(h_s, h_l.softmax(-1))


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {"kl": kl, "hat": hat}


@dataclass(frozen=True)
class Lesson:
    """Frozen tensors of a batch.

    shallow: [rows, length, hidden] after the shallow layers.
    counted: marks of the positions that are learnt from, [rows, length].
    f_l: [counted, hidden].
    """

    shallow: Tensor
    counted: Tensor
    f_l: Tensor


class Distillation:
    """An adapter on its way. Muon for its matrices, AdamW for the rest; warm-up and cosine."""

    def __init__(
        self,
        model: PreTrainedModel,
        first: int,
        loss: str,
        rate: float,
        steps: int,
        tokens: Tensor | None = None,
    ) -> None:
        """model: in float32, and frozen; first: m, the shallow layers; rate: the highest learning rate.

        tokens: ids that the loss compares, beside as many others that each step draws; None: all. Most of a step on a
            model of a large vocabulary is spent on tokens that its texts do not have.
        """
        self.model, self.first, self.rate, self.steps, self._tokens = model, first, rate, steps, tokens
        self.loss, self.adapter, self.done = LOSSES[loss], Adapter(model, first), 0
        matrices = [p for p in self.adapter.parameters() if p.ndim == 2]
        rest = [p for p in self.adapter.parameters() if p.ndim != 2]
        self._optimisers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=0.0),
            torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0),
        ]

    @torch.no_grad()
    def lesson(self, batch: Batch) -> Lesson:
        body, seen = self.model.model, []
        hook = body.layers[self.first].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.autocast("cpu", torch.bfloat16):  # 1.9 times as fast where the CPU has bf16 instructions
            deep = body(input_ids=batch.ids, use_cache=False).last_hidden_state  # after the norm
        hook.remove()
        return Lesson(seen[0], batch.counted, deep[batch.counted])

    def step(self, lesson: Lesson) -> float:
        """Learn once from it; returns the loss."""
        body, head, f_l = self.model.model, self._head(), lesson.f_l
        rotation = body.rotary_emb(lesson.shallow, torch.arange(lesson.shallow.shape[1])[None])
        with torch.autocast("cpu", torch.bfloat16):
            f_s = body.norm(self.adapter(lesson.shallow, rotation)[lesson.counted])
            logits = F.linear(f_l, head), F.linear(f_s, head)
        loss = self.loss(f_l.float(), f_s.float(), *(each.float() for each in logits))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), CLIP)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.rate * schedule(self.done, self.steps)
            optimiser.step()
            optimiser.zero_grad()
        self.done += 1
        return loss.item()

    def _head(self) -> Tensor:
        """Return the rows of the output matrix that a step compares."""
        head: Tensor = self.model.lm_head.weight
        if self._tokens is None:
            return head
        others = torch.randint(len(head), self._tokens.shape)
        return head[torch.cat([self._tokens, others]).unique()]


def lessons(
    run: Distillation,
    batches: Iterator[Batch],
    rng: Random,
    together: int = TOGETHER,
    visits: int = VISITS,
) -> Iterator[Lesson]:
    """Yield lessons on the batches, `together` at a time, each `visits` times: computing the frozen tensors is most of
    the work."""
    while True:
        some = []
        for batch in islice(batches, together):
            some.append(run.lesson(batch))
            yield some[-1]
        for _ in range(visits - 1):
            yield from rng.sample(some, len(some))


def kept_bytes(batches: Sequence[Batch], hidden: int) -> int:
    """Return the memory of the frozen tensors of all these batches. hidden: size of a hidden state."""
    return sum(2 * 4 * hidden * batch.ids.numel() for batch in batches)


def compared(documents: Sequence[Document], vocabulary: int) -> Tensor | None:
    """Return the ids that a loss over these documents compares: those in their answers, or None for all if these are
    a good part of the vocabulary."""
    tokens = sorted({token for document in documents for token in document.answer})
    return torch.tensor(tokens) if 4 * len(tokens) < vocabulary else None
