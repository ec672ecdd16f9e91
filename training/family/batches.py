"""Training batches: tokenized documents packed into rows, with a mark on every token that the loss counts.

A batch follows from the seed and the step alone, so a resumed training sees what an uninterrupted one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tandem.training.family import prompts
from tandem.training.family.encyclopedia.items import Item, make_item
from tandem.training.family.encyclopedia.world import World
from tandem.training.family.tables.shared import GREETINGS

# Shares of the documents, not of the tokens: a fact takes 30 tokens, a long answer 250.
ANSWER_KINDS = {
    "fact": 0.58,
    "overview": 0.09,
    "topic": 0.12,
    "long": 0.03,
    "story": 0.06,
    "compare": 0.07,
    "arithmetic": 0.05,
}
SKETCH_KINDS = {
    "fact": 0.03,
    "overview": 0.28,
    "topic": 0.26,
    "long": 0.10,
    "story": 0.13,
    "compare": 0.17,
    "arithmetic": 0.03,
}
SYSTEM_SHARE = 0.03
"""Share of the documents whose question begins with a system message."""
OTHER_WORLDS = 40


@dataclass(frozen=True)
class Mix:
    """Relative shares of the forms of documents.

    Expansions are about the home world; `copies` are expansions about worlds of other entities, and `retold`
    ones about the home world's entities with other facts. Only these make a model read its sketch: where its
    memory serves as well, it remembers. `rounds` is how many lines of its sketch an expansion document
    expands, one after another, as more rounds teach more with the same sketch.
    """

    answers: float
    sketches: float
    expansions: float = 0.0
    copies: float = 0.0
    retold: float = 0.0
    rounds: int = 1


class Corpus:
    """An endless, reproducible supply of batches of `rows` x `length` tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, rows: int, length: int) -> None:
        self.tokenizer, self.seed, self.rows, self.length = tokenizer, seed, rows, length

    def batch(self, step: int, mix: Mix) -> tuple[Tensor, Tensor]:
        """Return token ids (rows, length) and marks of those that the loss counts: the model's output, not prompts.

        Documents are packed without gaps and the last of a row is cut: any other choice favours short ones.
        """
        rng = Random(f"{self.seed} {step}")
        ids = torch.zeros(self.rows, self.length, dtype=torch.long)
        counted = torch.zeros(self.rows, self.length, dtype=torch.bool)
        for row in range(self.rows):
            end = 0
            while end < self.length:
                for prompt, text in self._document(rng, mix):
                    part = (prompt + text)[: self.length - end]
                    ids[row, end : end + len(part)] = torch.tensor(part, dtype=torch.long)
                    counted[row, end + len(prompt) : end + len(part)] = True
                    end += len(part)
        return ids, counted

    def _document(self, rng: Random, mix: Mix) -> list[tuple[list[int], list[int]]]:
        """Draw a document: in turn, token ids of a prompt and of what the model is to write."""
        shares = {
            "answer": mix.answers,
            "sketch": mix.sketches,
            "expansion": mix.expansions,
            "copy": mix.copies,
            "retold": mix.retold,
        }
        form = rng.choices(list(shares), list(shares.values()))[0]
        kinds = SKETCH_KINDS if form in ("sketch", "retold") else ANSWER_KINDS
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        if form not in ("answer", "sketch") and kind == "fact":
            kind = "overview"
        item = make_item(_world(rng, form), rng, kind)
        if form == "answer":
            parts = [(prompts.answer_prompt(item.question), prompts.answer_text(item))]
        elif form == "sketch":
            tokens = len(self._encode(f" {item.answer}"))
            parts = [(prompts.sketch_prompt(item.question), prompts.sketch_text(item, tokens))]
        else:
            parts = _expansions(rng, item, mix.rounds)
        if rng.random() < SYSTEM_SHARE:
            first, text = parts[0]
            greeting = f"{prompts.QUESTION} {rng.choice(GREETINGS)}"
            parts[0] = first.replace(prompts.QUESTION, greeting, 1), text
        return [(self._encode(prompt), self._encode(text)) for prompt, text in parts]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


def _expansions(rng: Random, item: Item, rounds: int) -> list[tuple[str, str]]:
    """The expansion prompt for a line and its sentence, then for further lines of the same sketch."""
    first = rng.randrange(len(item.lines))
    prompt = prompts.expansion_prompt(item.question, item.notes, item.notes[first])
    parts = [(prompt, prompts.expansion_text(item, first))]
    others = [i for i in range(len(item.lines)) if i != first] if rounds > 1 else []
    for i in rng.sample(others, min(rounds - 1, len(others))):
        parts.append((prompts.line_prompt(item.notes[i]), prompts.expansion_text(item, i)))
    return parts


def _world(rng: Random, form: str) -> World:
    if form == "copy":
        return _other_world(1000 + rng.randrange(OTHER_WORLDS), None)
    if form == "retold":
        return _other_world(prompts.home_world().seed, 1000 + rng.randrange(OTHER_WORLDS))
    return prompts.home_world()


@cache
def _other_world(seed: int, facts_seed: int | None) -> World:
    return World(seed, facts_seed)
