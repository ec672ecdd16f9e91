"""Texts for training and judging an adapter: questions with answers, of the family's world or from a file.

A file has one JSON object a line: {"question": …, "answer": …}, put into the form of the model's chat. The answers
should be the model's own (`tandem adapter answers`): these are what will be drafted later. One line in HELD is kept
for judging.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import torch
from torch import Tensor

from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.family import prompts
from tandem.training.family.encyclopedia.items import LONG_KINDS, make_item

HELD = 20
POOL = 256
"""Documents from which batches are made: enough of them are of about one length."""
SHARES = {
    "fact": 0.40,
    "overview": 0.13,
    "topic": 0.17,
    "long": 0.08,
    "story": 0.09,
    "compare": 0.09,
    "arithmetic": 0.04,
}
"""Shares of the family's kinds of questions, by documents: nine in ten tokens to write are in long answers."""


@dataclass(frozen=True)
class Document:
    """Token ids of a prompt, and of the answer with its end."""

    prompt: list[int]
    answer: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a corpus.

    answer: None if there is none yet.
    ended: whether the answer ends there; False if it was cut off.
    """

    question: str
    answer: str | None = None
    ended: bool = True


@dataclass(frozen=True)
class Batch:
    """Documents of about one length, padded behind: ids [rows, length] and marks of the positions from which a token of
    an answer is predicted."""

    ids: Tensor
    counted: Tensor


def of_family(tokenizer: Tokenizer, rng: Random) -> Iterator[Document]:
    """Questions about the family's world in the phrasings of its training, without end."""
    while True:
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        item = make_item(prompts.home_world(), rng, kind)
        answer = tokenizer.encode(prompts.answer_prompt(item.question) + prompts.answer_text(item))
        prompt = tokenizer.encode(prompts.answer_prompt(item.question))
        yield Document(prompt, answer[len(prompt) :])


def family_questions(tokenizer: Tokenizer, count: int, seed: int) -> dict[str, list[list[int]]]:
    """Return prompts in held-out phrasings: `count` with long answers, and twice as many single facts."""
    drawn = {
        "facts": prompts.heldout(2 * count, ["fact"], seed),
        "long answers": prompts.heldout(count, LONG_KINDS, seed),
    }
    return {
        group: [tokenizer.encode(prompts.answer_prompt(item.question)) for item in items]
        for group, items in drawn.items()
    }


def read(file: Path) -> list[Line]:
    """Return the lines of a file. Raises OSError, and ValueError naming a line that is none."""
    lines: list[Line] = []
    for number, text in enumerate(file.read_bytes().splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(text, type=Line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{file}, line {number}: {error}") from None
    return lines


def divided(corpus: Path) -> tuple[list[Line], list[Line]]:
    """Return a corpus's lines for training and for judging. Raises as `read`, and ValueError for too few."""
    lines = read(corpus)
    if len(lines) < 2:
        raise ValueError(f"{corpus} has too few lines to train on some and judge by others")
    return [line for i, line in enumerate(lines) if i % HELD], lines[::HELD]


def prompt_of(tokenizer: Tokenizer, question: str) -> list[int]:
    """Return the prompt of a chat that begins with the question."""
    return tokenizer.render_chat([{"role": "user", "content": question}])


def documents_of(tokenizer: Tokenizer, lines: Sequence[Line], longest: int) -> list[Document]:
    """Return the lines as documents, cut to `longest` tokens. Raises ValueError if one has no answer."""
    documents = []
    for line in lines:
        if line.answer is None:
            raise ValueError(
                "the corpus has questions without an answer; `tandem adapter answers` lets the model give "
                f"its own: {line.question[:60]!r}"
            )
        prompt = prompt_of(tokenizer, line.question)
        answer = [*tokenizer.encode_bytes(line.answer.encode()), *[tokenizer.eos] * line.ended]
        documents.append(Document(prompt, answer[: max(longest - len(prompt), 0)]))
    return [document for document in documents if document.answer]


def again_and_again(documents: Sequence[Document], rng: Random) -> Iterator[Document]:
    """All of them in an order drawn by chance, without end."""
    while True:
        yield from rng.sample(documents, len(documents))


def batches(documents: Iterator[Document], tokens: int, rng: Random) -> Iterator[Batch]:
    """Yield batches of at most `tokens` positions, padding included, in an order drawn by chance."""
    while True:
        yield from grouped([next(documents) for _ in range(POOL)], tokens, rng)


def grouped(documents: Sequence[Document], tokens: int, rng: Random) -> list[Batch]:
    """Return all documents in batches of at most `tokens` positions, in an order drawn by chance."""
    groups: list[list[Document]] = [[]]
    for document in sorted(documents, key=len):
        if groups[-1] and len(document) * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(document)
    rng.shuffle(groups)
    return [_batch(group) for group in groups]


def _batch(documents: Sequence[Document]) -> Batch:
    ids = torch.zeros(len(documents), max(map(len, documents)), dtype=torch.long)
    counted = torch.zeros(ids.shape, dtype=torch.bool)
    for row, document in enumerate(documents):
        ids[row, : len(document)] = torch.tensor(document.prompt + document.answer)
        counted[row, len(document.prompt) - 1 : len(document) - 1] = True
    return Batch(ids, counted)
