"""Evaluation of the family on held-out phrasings: `python -m tandem.training.family.evaluate`.

Prints a table, and as its last line one JSON object with the figures. Every figure is of the weights as saved
(bf16), computed in float32, with greedy generation unless noted.
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

from tandem.engine.family import EXPANDERS, path
from tandem.policies.sketch.rouge import rouge1
from tandem.training.family.encyclopedia.items import LONG_KINDS, Item
from tandem.training.family.expand import expand, expand_in_a_row
from tandem.training.family.generate import generate
from tandem.training.family.models import load
from tandem.training.family.prompts import (
    answer_prompt,
    heldout,
    parse_sketch,
    sketch_prompt,
)
from tandem.training.family.scoring import fact_accuracy

FACT_TOKENS, ANSWER_TOKENS, SKETCH_TOKENS, SENTENCE_TOKENS = 40, 320, 160, 48
"""Limits of generation; the longest true texts have about 30, 290, 110 and 32 tokens."""


@dataclass
class Evaluation:
    """The models under test, the questions, and a place to report progress to.

    devices: their models, by name; each drafts for the target and expands its sketches.
    answers: questions with long answers, for acceptance and for sketch and expansion.
    """

    target: LlamaForCausalLM
    devices: dict[str, LlamaForCausalLM]
    tokenizer: PreTrainedTokenizerFast
    facts: list[Item]
    answers: list[Item]
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
        prompts = [answer_prompt(item.question) for item in self.answers]
        full_ids = self.generate("answers, target", self.target, prompts, ANSWER_TOKENS)
        sampled_ids = self.generate(
            "answers, target at T=1", self.target, prompts, ANSWER_TOKENS, sample=True
        )
        sketch_prompts = [sketch_prompt(item.question) for item in self.answers]
        sketch_ids = self.generate("sketches, target", self.target, sketch_prompts, SKETCH_TOKENS)
        sketches = [parse_sketch(text) for text in self.texts(sketch_ids)]
        lengths = [len(self.tokenizer.encode(f" {item.answer}")) for item in self.answers]
        texts = {
            "target, full answer": self.texts(full_ids),
            "target's sketch": [" ".join(sketch.lines) for sketch in sketches],
        }
        figures = {
            "target_facts": self.facts_known("facts, target", self.target),
            "target_answer_facts": fact_accuracy(self.answers, texts["target, full answer"]),
            "answer_tokens": mean(map(len, full_ids)),
            "sketch_ratio": mean(map(len, sketch_ids)) / mean(map(len, full_ids)),
            "length_error": mean(
                abs((sketch.length or 0) - length) / length
                for sketch, length in zip(sketches, lengths, strict=True)
            ),
        }
        for name, model in self.devices.items():
            figures[f"{name}_accept_greedy"] = self._acceptance(model, prompts, full_ids, greedy=True)
            figures[f"{name}_accept_t1"] = self._acceptance(model, prompts, sampled_ids, greedy=False)
            figures[f"{name}_facts"] = self.facts_known(f"facts, {name}", model)
            written = self._written(name, model, prompts, [sketch.lines for sketch in sketches])
            for figure, (what, outputs) in written.items():
                figures[f"{name}_{figure}"] = fact_accuracy(self.answers, outputs)
                texts[f"{name}, {what}"] = outputs
        table = Table("answers to held-out questions", "facts", "ROUGE-1", *LONG_KINDS)
        for what, outputs in texts.items():
            table.add_row(what, *self._row(outputs))
        return figures, table

    def _written(
        self, name: str, model: LlamaForCausalLM, prompts: Sequence[str], sketches: Sequence[Sequence[str]]
    ) -> dict[str, tuple[str, list[str]]]:
        """Return texts of a device's model, alone and from sketches: by figure, its description and the texts."""

        def write(prompts: Sequence[str]) -> list[str]:
            return self.texts(self.generate(f"expansions, {name}", model, prompts, SENTENCE_TOKENS))

        questions = [item.question for item in self.answers]
        own = self.generate(f"answers, {name}", model, prompts, ANSWER_TOKENS)
        in_a_row = expand_in_a_row(write, questions, sketches)
        of_true = expand(write, questions, [item.notes for item in self.answers])
        return {
            "answer_facts": ("full answer", self.texts(own)),
            "expand_facts": ("target's sketch", _joined(expand(write, questions, sketches))),
            "expand_row_facts": ("target's sketch in a row", _joined(in_a_row)),
            "expand_true_facts": ("true sketch", _joined(of_true)),
        }

    def _row(self, texts: Sequence[str]) -> list[str]:
        by_kind = []
        for kind in LONG_KINDS:
            chosen = [
                (item, text) for item, text in zip(self.answers, texts, strict=True) if item.kind == kind
            ]
            by_kind.append(f"{fact_accuracy(*zip(*chosen, strict=True)):.2f}" if chosen else "-")
        rouge = mean(rouge1(text, item.answer) for item, text in zip(self.answers, texts, strict=True))
        return [f"{fact_accuracy(self.answers, texts):.3f}", f"{rouge:.3f}", *by_kind]

    @torch.inference_mode()
    def _acceptance(
        self,
        drafter: LlamaForCausalLM,
        prompts: Sequence[str],
        answers: Sequence[Sequence[int]],
        greedy: bool,
    ) -> float:
        """Per token of the target's own answers, the chance that it accepts the drafter's.

        Greedy: both models' likeliest tokens agree. At T=1: the sum over tokens of min(p, q).
        """
        shares: list[float] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            start = self.tokenizer.encode(prompt)
            ids = torch.tensor([[*start, *answer]])
            p, q = (next_logits(model, ids, len(start)) for model in (self.target, drafter))
            if greedy:
                shares += (p.argmax(-1) == q.argmax(-1)).tolist()
            else:
                shares += torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1).tolist()
        return mean(map(float, shares))


def _joined(answers: Sequence[Sequence[str]]) -> list[str]:
    return list(map(" ".join, answers))


def next_logits(model: LlamaForCausalLM, ids: Tensor, start: int) -> Tensor:
    """Logits (tokens, vocabulary) for each token from `start` on, and for the one after the last."""
    return model(input_ids=ids, use_cache=False).logits[0, start - 1 :]


def evaluate(
    target: Path, devices: Sequence[Path], facts: int, answers: int, seed: int, console: Console
) -> dict[str, float]:
    """Evaluate a target and devices' models on these numbers of fact questions and of questions with long answers;
    print the table."""
    model, tokenizer = load(target)
    with Progress(console=console, transient=True) as progress:
        evaluation = Evaluation(
            model,
            {folder.name: load(folder)[0] for folder in devices},
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
        prog="python -m tandem.training.family.evaluate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--target", type=Path, default=path("target"), help="model folder (the family's)")
    parser.add_argument(
        "--devices",
        type=Path,
        nargs="+",
        default=list(map(path, EXPANDERS)),
        help=f"model folders (the family's {', '.join(EXPANDERS)})",
    )
    parser.add_argument("--facts", type=int, default=500, help="fact questions (%(default)s)")
    parser.add_argument("--answers", type=int, default=100, help="questions with long answers (%(default)s)")
    parser.add_argument("--seed", type=int, default=11, help="of the questions and of sampling (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    console = Console(width=120)
    began = time.monotonic()
    figures = evaluate(
        chosen.target,
        chosen.devices,
        chosen.facts,
        chosen.answers,
        chosen.seed,
        console,
    )
    for name, value in figures.items():
        console.print(f"{name:>24}  {value:.3f}")
    console.print(f"{'seconds':>24}  {time.monotonic() - began:.0f}")
    print(json.dumps({"benchmark": "family", "figures": {k: round(v, 4) for k, v in figures.items()}}))


if __name__ == "__main__":
    main()
