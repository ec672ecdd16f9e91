"""Value of a sketch to the device that expands it: PICE's score of a preference pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tandem.policies.sketch.rouge import rouge1
from tandem.training.family.evaluate import SENTENCE_TOKENS
from tandem.training.family.generate import generate
from tandem.training.family.prompts import lines_text


@dataclass(frozen=True)
class Expander:
    """A device's model, which writes greedily."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast

    def write(self, prompts: Sequence[str]) -> list[str]:
        written = generate(self.model, self.tokenizer, prompts, SENTENCE_TOKENS)
        return [str(self.tokenizer.decode(ids)).strip() for ids in written]

    def tokens(self, lines: Sequence[str]) -> int:
        """len(r): of a sketch's lines and what separates them."""
        return len(self.tokenizer.encode(lines_text(lines), add_special_tokens=False))


@dataclass(frozen=True)
class Score:
    """b1 / len(r) + b2 · ROUGE-1(expand(r), y); PICE's section on fine-tuning."""

    b1: float
    b2: float

    def of(self, tokens: int, expansion: str, answer: str) -> float:
        """tokens: len(r), of which an empty sketch has none and no worth."""
        return self.b1 / tokens + self.b2 * rouge1(expansion, answer) if tokens else 0.0
