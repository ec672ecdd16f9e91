"""A corpus of a model's own answers, written as they come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.training.adapter import answers, texts
from tandem.training.adapter.__main__ import main
from tandem.training.adapter.texts import Line

QUESTIONS = ["Who are you?", "And where?", "Tell me about the town.", "No"]
LENGTH = 40


async def _greedy(model: Path, prompt: list[int], most: int) -> tuple[list[int], str | None]:
    engine, ids, finish = load(model, EngineConfig(), threads=1), list[int](), None
    session = await engine.open(prompt, Sampling(max_tokens=most))
    async for tokens in session.generate():
        ids += tokens.ids
        finish = tokens.finish
    await engine.close()
    return ids, finish


def test_a_second_run_goes_on_from_the_models_own_answers(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run is broken off in the middle of a line; a question that is too long is left out."""
    asked, corpus = tmp_path / "questions.jsonl", tmp_path / "corpus.jsonl"
    questions = [*QUESTIONS, "long " * LENGTH, QUESTIONS[0]]
    asked.write_text("\n".join(json.dumps({"question": q, "answer": "not this"}) for q in questions))
    command = [
        "answers",
        str(tiny_model),
        "--questions",
        str(asked),
        "--out",
        str(corpus),
        "--length",
        str(LENGTH),
    ]
    main(command)
    assert "4 new answers; 1 questions were too long" in capsys.readouterr().out
    tokenizer = Tokenizer.load(tiny_model)
    lines = texts.read(corpus)
    for line in lines:
        prompt = texts.prompt_of(tokenizer, line.question)
        ids, finish = asyncio.run(_greedy(tiny_model, prompt, LENGTH - len(prompt)))
        assert line == Line(line.question, tokenizer.decode(ids), finish == "stop")
    assert sorted(line.question for line in lines) == sorted(QUESTIONS)
    whole = corpus.read_bytes()
    corpus.write_bytes(whole[: whole.rstrip().rfind(b"\n") + 9])
    known, told = [], answers._answer

    async def answer(*given: object) -> None:
        known.extend(given[2])  # type: ignore[call-overload]
        await told(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "_answer", answer)
    main(command)
    assert known == [lines[-1].question]
    assert corpus.read_bytes() == whole


def test_a_model_that_is_not_there_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "Who?"}')
    with pytest.raises(SystemExit, match="there is no folder or GGUF file"):
        main(
            [
                "answers",
                "no/such/model",
                "--questions",
                str(tmp_path / "questions.jsonl"),
                "--out",
                str(tmp_path / "c"),
            ]
        )
