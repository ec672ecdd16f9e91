"""Step 2: a reward model learns from pairs which of two sketches is worth more to the expander."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.training.family.prompts import EOS, NEXT, sketch_prompt
from tandem.training.sketch.descent import Descent
from tandem.training.sketch.preferences import Pair

TOGETHER = 16
"""Pairs of a step."""


@dataclass(frozen=True)
class Rows:
    """Sketches as a batch, padded behind.

    ids: of prompt and sketch with its end token, [rows, length].
    written: marks of the sketch's tokens, without its announced length.
    ends: marks of the tokens that end a line, `<|;|>` or the last.
    line: the number of the line that a token belongs to, from 0; without meaning where it is not `written`.
    """

    ids: Tensor
    written: Tensor
    ends: Tensor
    line: Tensor


def rows(
    tokenizer: PreTrainedTokenizerFast, questions: Sequence[str], sketches: Sequence[Sequence[int]]
) -> Rows:
    """sketches: token ids, as generated after the prompts, without end."""
    next_id, end = (tokenizer.convert_tokens_to_ids(token) for token in (NEXT, EOS))
    prompts = [tokenizer.encode(sketch_prompt(question), add_special_tokens=False) for question in questions]
    texts = [[*prompt, *sketch, end] for prompt, sketch in zip(prompts, sketches, strict=True)]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    sketched = torch.zeros(ids.shape, dtype=torch.bool)
    for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        ids[row, : len(text)] = torch.tensor(text)
        sketched[row, len(prompt) : len(text)] = True
    separators = (sketched & ((ids == next_id) | (ids == end))).cumsum(1)
    at_separator = separators.diff(dim=1, prepend=separators[:, :1] * 0) > 0
    line = (
        separators - at_separator.long() - 1
    )  # a separator ends the line before it; the first one, the length
    written = sketched & (line >= 0)
    return Rows(ids, written, written & at_separator, line.clamp(min=0))


class RewardModel(nn.Module):
    """R(x, r) = Σ over the lines of r of what a linear head reads off the hidden state where each ends.

    As a sum it says which line is to blame; the pairs only ever compare whole sketches.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        """model: becomes the reward model's own."""
        super().__init__()
        self.body = model.model.requires_grad_(True)
        self.head = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Rows) -> Tensor:
        """Return each line's reward at its end, and 0 everywhere else: [rows, length]."""
        hidden = self.body(input_ids=batch.ids, use_cache=False).last_hidden_state
        return torch.where(batch.ends, self.head(hidden)[..., 0].float(), 0.0)

    def preference_loss(self, better: Rows, worse: Rows) -> Tensor:
        """−E log σ(R(x, r_w) − R(x, r_l)); PICE's section on fine-tuning."""
        return -F.logsigmoid(self(better).sum(1) - self(worse).sum(1)).mean()


def learn_reward(
    reward: RewardModel,
    descent: Descent,
    pairs: Sequence[Pair],
    tokenizer: PreTrainedTokenizerFast,
    rng: Random,
    hear: Callable[[float], object],
) -> None:
    """Descend the loss of the pairs; hears it."""
    for _ in range(descent.steps):
        better, worse = _rows_of(rng.sample(pairs, min(TOGETHER, len(pairs))), tokenizer)
        with torch.autocast("cpu", torch.bfloat16):
            loss = reward.preference_loss(better, worse)
        descent.step(loss)
        hear(loss.item())


@torch.no_grad()
def accuracy(reward: RewardModel, pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> float:
    """The share of pairs of which it prefers the better one."""
    better, worse = _rows_of(pairs, tokenizer)
    return float((reward(better).sum(1) > reward(worse).sum(1)).float().mean())


def _rows_of(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerFast) -> tuple[Rows, Rows]:
    """(the better, the worse)."""
    questions = [pair.question for pair in pairs]
    better, worse = [pair.better for pair in pairs], [pair.worse for pair in pairs]
    return rows(tokenizer, questions, better), rows(tokenizer, questions, worse)
