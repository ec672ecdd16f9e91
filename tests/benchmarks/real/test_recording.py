"""Acceptances are recorded where the drafter's likeliest token is the target's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tandem.benchmarks.real.recording import CONTEXT, Recorded, read, record, write
from tandem.benchmarks.real.results import Answer
from tandem.benchmarks.real.tasks import Task

RECORDED = [Recorded("Vicuna", "1", 2, "1101"), Recorded("GSM8K", "2", 7, "0")]


class Counting:
    """A drafter that expects each token's successor."""

    def __init__(self, path: str, **options: object) -> None:
        self.scores = np.zeros((CONTEXT, 128))

    def reset(self) -> None:
        self.scores[:] = 0

    def eval(self, tokens: Sequence[int]) -> None:
        for place, token in enumerate(tokens):
            self.scores[place, (token + 1) % 128] = 1


class Chats:
    """A tokenizer whose prompts have two tokens."""

    def render_chat(self, messages: object) -> tuple[int, ...]:
        return 10, 11


def answer(task: str, ids: list[int]) -> Answer:
    return Answer("", "Vicuna", task, "cloud", "", ids, len(ids), 0.1, 1.0, None, msgspec.Raw(b"{}"))


def test_a_draft_is_judged_by_the_token_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Counting))
    asked = {("Vicuna", name): Task("Vicuna", name, "?", 8, {}) for name in ("1", "2", "3")}
    answers = [answer("1", [12, 13, 99, 100]), answer("2", []), answer("3", [1] * CONTEXT)]
    found = list(record(Path("drafter.gguf"), Chats(), asked, answers))  # type: ignore[arg-type]
    assert found == RECORDED[:1]  # an empty answer and one beyond the context are left out


def test_a_file_of_recordings_is_read_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", RECORDED)
    assert read(tmp_path / "r.jsonl") == RECORDED
