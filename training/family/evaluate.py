"""How good the family is, on phrasings it was never trained on: `python -m training.family.evaluate`.

Prints a table, and as its last line one JSON object with the figures. Every figure is of the weights as saved
(bf16), computed in float32, with greedy generation where nothing else is said.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from engine.family import path
from training.family.generate import generate
from training.family.items import LONG_KINDS, Item
from training.family.models import load
from training.family.prompts import answer_prompt, expansion_prompt, heldout, parse_sketch, sketch_prompt
from training.family.scoring import fact_accuracy, rouge1

FACT_TOKENS, ANSWER_TOKENS, SKETCH_TOKENS, SENTENCE_TOKENS = 40, 320, 160, 48
"""Limits of generation; the longest true texts have about 30, 290, 110 and 32 tokens."""


@dataclass
class Evaluation:
    """The models under test, the questions, and a place to report progress to."""

    target: LlamaForCausalLM
    small: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    facts: list[Item]
    answers: list[Item]
    """Questions with long answers, for acceptance and for sketch and expansion."""
    progress: Progress
    seed: int

    def generate(
        self,
        what: str,
        model: LlamaForCausalLM,
        prompts: Sequence[str],
        max_tokens: int,
        sample: bool = False,
    ) -> list[list[int]]:
        bar = self.progress.add_task(what, total=len(prompts))
        torch.manual_seed(self.seed)
        return generate(
            model, self.tokenizer, prompts, max_tokens, sample, lambda done: self.progress.advance(bar, done)
        )

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return [str(self.tokenizer.decode(list(ids))).strip() for ids in token_ids]

    def facts_known(self, what: str, model: LlamaForCausalLM) -> float:
        """The share of single facts that the model answers correctly."""
        prompts = [answer_prompt(item.question) for item in self.facts]
        return fact_accuracy(self.facts, self.texts(self.generate(what, model, prompts, FACT_TOKENS)))

    def run(self) -> tuple[dict[str, float], Table]:
        figures = {
            "target_facts": self.facts_known("facts, target", self.target),
            "small_facts": self.facts_known("facts, small", self.small),
        }
        prompts = [answer_prompt(item.question) for item in self.answers]
        full_ids = self.generate("answers, target", self.target, prompts, ANSWER_TOKENS)
        sampled_ids = self.generate(
            "answers, target at T=1", self.target, prompts, ANSWER_TOKENS, sample=True
        )
        alone_ids = self.generate("answers, small", self.small, prompts, ANSWER_TOKENS)
        figures["accept_greedy"] = self._acceptance(prompts, full_ids, greedy=True)
        figures["accept_t1"] = self._acceptance(prompts, sampled_ids, greedy=False)

        sketch_prompts = [sketch_prompt(item.question) for item in self.answers]
        sketch_ids = self.generate("sketches, target", self.target, sketch_prompts, SKETCH_TOKENS)
        sketches = [parse_sketch(text) for text in self.texts(sketch_ids)]
        expanded = self._expand("expansions, small", [sketch.lines for sketch in sketches])
        perfect = self._expand("expansions of true sketches", [item.notes for item in self.answers])
        texts = {
            "target, full answer": self.texts(full_ids),
            "small, full answer": self.texts(alone_ids),
            "target's sketch": [" ".join(sketch.lines) for sketch in sketches],
            "target's sketch, small's expansion": expanded,
            "true sketch, small's expansion": perfect,
        }
        table = Table("answers to held-out questions", "facts", "ROUGE-1", *LONG_KINDS)
        for name, outputs in texts.items():
            table.add_row(name, *self._row(outputs))
        lengths = [len(self.tokenizer.encode(f" {item.answer}")) for item in self.answers]
        figures["expand_facts"] = fact_accuracy(self.answers, expanded)
        figures["sketch_ratio"] = mean(map(len, sketch_ids)) / mean(map(len, full_ids))
        figures["target_answer_facts"] = fact_accuracy(self.answers, texts["target, full answer"])
        figures["small_answer_facts"] = fact_accuracy(self.answers, texts["small, full answer"])
        figures["answer_tokens"] = mean(map(len, full_ids))
        figures["length_error"] = mean(
            abs((sketch.length or 0) - length) / length
            for sketch, length in zip(sketches, lengths, strict=True)
        )
        return figures, table

    def _row(self, texts: Sequence[str]) -> list[str]:
        by_kind = []
        for kind in LONG_KINDS:
            chosen = [
                (item, text) for item, text in zip(self.answers, texts, strict=True) if item.kind == kind
            ]
            by_kind.append(f"{fact_accuracy(*zip(*chosen, strict=True)):.2f}" if chosen else "-")
        rouge = mean(rouge1(text, item.answer) for item, text in zip(self.answers, texts, strict=True))
        return [f"{fact_accuracy(self.answers, texts):.3f}", f"{rouge:.3f}", *by_kind]

    def _expand(self, what: str, sketches: Sequence[Sequence[str]]) -> list[str]:
        """Let the small model write the sentence of every line on its own, and join them."""
        owners = [i for i, lines in enumerate(sketches) for _ in lines]
        prompts = [
            expansion_prompt(item.question, lines, line)
            for item, lines in zip(self.answers, sketches, strict=True)
            for line in lines
        ]
        sentences = self.texts(self.generate(what, self.small, prompts, SENTENCE_TOKENS))
        return [
            " ".join(sentence for owner, sentence in zip(owners, sentences, strict=True) if owner == i)
            for i in range(len(sketches))
        ]

    @torch.inference_mode()
    def _acceptance(self, prompts: Sequence[str], answers: Sequence[Sequence[int]], greedy: bool) -> float:
        """Per token of the target's own answers, the chance that it accepts the small model's draft.

        Greedy: both models' likeliest tokens agree. At T=1: the sum over tokens of min(p, q).
        """
        shares: list[float] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            start = self.tokenizer.encode(prompt)
            ids = torch.tensor([[*start, *answer]])
            p, q = (next_logits(model, ids, len(start)) for model in (self.target, self.small))
            if greedy:
                shares += (p.argmax(-1) == q.argmax(-1)).tolist()
            else:
                shares += torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1).tolist()
        return mean(map(float, shares))


def next_logits(model: LlamaForCausalLM, ids: Tensor, start: int) -> Tensor:
    """Logits (tokens, vocabulary) for each token from `start` on, and for the one after the last."""
    return model(input_ids=ids, use_cache=False).logits[0, start - 1 :]


def evaluate(
    target: Path, small: Path, facts: int, answers: int, seed: int, console: Console
) -> dict[str, float]:
    """Evaluate a pair on this many fact questions and questions with long answers; prints the table."""
    model, tokenizer = load(target)
    with Progress(console=console, transient=True) as progress:
        evaluation = Evaluation(
            model,
            load(small)[0],
            tokenizer,
            heldout(facts, ["fact"], seed),
            heldout(answers, LONG_KINDS, seed),
            progress,
            seed,
        )
        figures, table = evaluation.run()
    console.print(table)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.family.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--target", type=Path, default=None, help="model folder (default: the family's target)"
    )
    parser.add_argument("--small", type=Path, default=None, help="model folder (default: the family's small)")
    parser.add_argument("--facts", type=int, default=500, help="fact questions (%(default)s)")
    parser.add_argument("--answers", type=int, default=100, help="questions with long answers (%(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="of the questions and of sampling (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    console = Console(width=120)
    began = time.monotonic()
    figures = evaluate(
        chosen.target or path("target"),
        chosen.small or path("small"),
        chosen.facts,
        chosen.answers,
        chosen.seed,
        console,
    )
    for name, value in figures.items():
        console.print(f"{name:>20}  {value:.3f}")
    console.print(f"{'seconds':>20}  {time.monotonic() - began:.0f}")
    print(json.dumps({"benchmark": "family", "figures": {k: round(v, 4) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
