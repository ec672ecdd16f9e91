"""Texts for training and judging an adapter: questions with answers, of the family's world or from a file.

A file has one JSON object a line: {"question": …, "answer": …}, put into the form of the model's chat. Where there is
no answer the model gives its own, which is what will be drafted later. One line in HELD is kept for judging.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
import torch
from torch import Tensor

from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.training.family import prompts
from tandem.training.family.items import LONG_KINDS, make_item

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


class Line(msgspec.Struct, frozen=True):
    """One line of a corpus."""

    question: str
    answer: str | None = None


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


def read(corpus: Path) -> tuple[list[Line], list[Line]]:
    """(for training, for judging). Raises ValueError naming a line that is none."""
    lines: list[Line] = []
    for number, text in enumerate(corpus.read_text(encoding="utf-8").splitlines(), 1):
        try:
            lines.append(msgspec.json.decode(text, type=Line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{corpus}, line {number}: {error}") from None
    held = lines[::HELD]
    if len(lines) < 2:
        raise ValueError(f"{corpus} has too few lines to train on some and judge by others")
    return [line for i, line in enumerate(lines) if i % HELD], held


def prompt_of(tokenizer: Tokenizer, line: Line) -> list[int]:
    return tokenizer.render_chat([{"role": "user", "content": line.question}])


def documents_of(
    model: Path, lines: Sequence[Line], longest: int, progress: Callable[[], object] = lambda: None
) -> list[Document]:
    """The lines as documents of at most `longest` tokens, answered greedily by the model where they have no answer."""
    tokenizer = Tokenizer.load(model)
    asked = [prompt_of(tokenizer, line) for line in lines]
    open_ones = [prompt for prompt, line in zip(asked, lines, strict=True) if line.answer is None]
    own = iter(asyncio.run(_answers(model, open_ones, longest, progress)) if open_ones else [])
    documents = []
    for prompt, line in zip(asked, lines, strict=True):
        answer = (
            next(own)
            if line.answer is None
            else [*tokenizer.encode_bytes(line.answer.encode()), tokenizer.eos]
        )
        documents.append(Document(prompt, answer[: max(longest - len(prompt), 0)]))
    return [document for document in documents if document.answer]


async def _answers(
    model: Path, asked: Sequence[list[int]], longest: int, progress: Callable[[], object]
) -> list[list[int]]:
    """Greedy, end tokens included."""
    config = EngineConfig()
    engine = load(model, config, device="cpu", threads=torch.get_num_threads())
    free = asyncio.Semaphore(config.places)

    async def answer(prompt: list[int]) -> list[int]:
        ids: list[int] = []
        async with free:
            session = await engine.open(prompt, Sampling(max_tokens=max(longest - len(prompt), 1)))
            async for tokens in session.generate():
                ids += tokens.ids
            await session.cancel()
        progress()
        return ids

    try:
        return await asyncio.gather(*map(answer, asked))
    finally:
        await engine.close()


def again_and_again(documents: Sequence[Document], rng: Random) -> Iterator[Document]:
    """All of them in an order drawn by chance, without end."""
    while True:
        yield from rng.sample(documents, len(documents))


def batches(documents: Iterator[Document], tokens: int, rng: Random) -> Iterator[Batch]:
    """Batches of at most `tokens` positions, padding included, in an order drawn by chance."""
    while True:
        pool = sorted((next(documents) for _ in range(POOL)), key=len)
        groups: list[list[Document]] = [[]]
        for document in pool:
            if groups[-1] and len(document) * (len(groups[-1]) + 1) > tokens:
                groups.append([])
            groups[-1].append(document)
        rng.shuffle(groups)
        yield from map(_batch, groups)


def _batch(documents: Sequence[Document]) -> Batch:
    ids = torch.zeros(len(documents), max(map(len, documents)), dtype=torch.long)
    counted = torch.zeros(ids.shape, dtype=torch.bool)
    for row, document in enumerate(documents):
        ids[row, : len(document)] = torch.tensor(document.prompt + document.answer)
        counted[row, len(document.prompt) - 1 : len(document) - 1] = True
    return Batch(ids, counted)
