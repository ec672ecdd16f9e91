"""Training texts of adapters: drawn by the seed, marked where something is written, never those used for judging."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random

import msgspec
import pytest

from tandem.engine import family
from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.adapter import texts
from tandem.training.adapter.texts import Document, Line


def test_the_familys_documents_are_what_its_chat_is(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(family.path("target"))
    document = next(texts.of_family(tokenizer, Random(1)))
    question = tokenizer.decode(document.prompt).strip()
    assert document.prompt == texts.prompt_of(tokenizer, question)
    assert document.answer[-1] == tokenizer.eos
    assert tokenizer.eos not in document.answer[:-1]


def test_the_familys_questions_were_never_learnt_from() -> None:
    tokenizer = Tokenizer.load(family.path("target"))
    learnt = {tuple(d.prompt) for d in islice(texts.of_family(tokenizer, Random(1)), 1000)}
    judged = texts.family_questions(tokenizer, 40, 2)
    assert {group: len(prompts) for group, prompts in judged.items()} == {"facts": 80, "long answers": 40}
    assert not learnt & {tuple(prompt) for prompts in judged.values() for prompt in prompts}


def test_batches_follow_from_the_seed_and_mark_what_is_written() -> None:
    documents = [Document([1, *[7] * (i % 5)], [20 + i] * (1 + i % 9) + [2]) for i in range(50)]

    def some(seed: int) -> list[texts.Batch]:
        rng = Random(seed)
        return list(islice(texts.batches(texts.again_and_again(documents, rng), 64, rng), 60))

    batches, again, others = some(1), some(1), some(2)
    assert all(a.ids.equal(b.ids) and a.counted.equal(b.counted) for a, b in zip(batches, again, strict=True))
    assert not all(
        a.ids.shape == b.ids.shape and a.ids.equal(b.ids) for a, b in zip(batches, others, strict=True)
    )
    seen = set()
    for batch in batches:
        assert batch.ids.numel() <= 64
        for ids, counted in zip(batch.ids.tolist(), batch.counted.tolist(), strict=True):
            written = [ids[i + 1] for i, mark in enumerate(counted) if mark]
            seen.add(tuple(written))
            assert written[-1] == 2
            assert set(written[:-1]) == {ids[ids.index(written[0])]}
    assert seen == {tuple(document.answer) for document in documents}


def test_one_line_in_twenty_is_kept_for_judging(corpus: Path) -> None:
    learnt, held = texts.divided(corpus)
    assert len(held) == 3
    assert len(learnt) + len(held) == len(corpus.read_text().splitlines())
    assert not set(held) & set(learnt)


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"question": "a"}\n{"quest": "b"}', "line 2.*question"), ('{"question": "a"}', "too few")],
)
def test_a_corpus_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(ValueError, match=said):
        texts.divided(tmp_path / "corpus.jsonl")


def test_an_answer_ends_where_the_model_ended_it(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    whole, cut = (Line("And where?", "Here.", ended) for ended in (True, False))
    first, second, short = texts.documents_of(tokenizer, [whole, cut], 60) + texts.documents_of(
        tokenizer, [whole], len(texts.prompt_of(tokenizer, whole.question)) + 1
    )
    assert first.prompt == texts.prompt_of(tokenizer, "And where?")
    assert tokenizer.decode(second.answer) == "Here."
    assert first.answer == [*second.answer, tokenizer.eos]
    assert short.answer == first.answer[:1]


def test_a_question_without_an_answer_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="adapter answers.*And where"):
        texts.documents_of(Tokenizer.load(tiny_model), [Line("Who?", "I."), Line("And where?")], 60)


def test_a_line_may_hold_any_character(tmp_path: Path) -> None:
    line = Line("one\u2028two", "three\x85\nfour")
    (tmp_path / "corpus.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")
    assert texts.read(tmp_path / "corpus.jsonl") == [line]
