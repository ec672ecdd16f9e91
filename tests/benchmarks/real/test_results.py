"""Answers are kept as they come, and a run that was broken off goes on from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tandem.benchmarks.chats import Chat, Server
from tandem.benchmarks.real import live
from tandem.benchmarks.real.results import Answer, Results
from tandem.benchmarks.real.tasks import Task

TASKS = [Task("Vicuna", str(i), f"question {i}", 8, {}) for i in range(4)]


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


class Asked:
    """Takes the server's place; refuses some modes, and fails once it has answered so many questions.

    questions: asked so far, without those that warm up.
    """

    def __init__(self, refused: Sequence[str] = (), most: int = 1000) -> None:
        self.questions: list[tuple[str, str]] = []
        self._refused, self._most = refused, most

    async def __call__(self, client: httpx.AsyncClient, server: Server, question: str, tokens: int) -> Chat:
        mode = server.extra["tandem"]["mode"]
        if mode in self._refused:
            raise RuntimeError("not this one")
        if question.startswith("question"):
            if len(self.questions) == self._most:
                raise ConnectionError
            self.questions.append((mode, question))
        return Chat(4, 0.5, 1.0, question[-4:], {"cost": {"usd": 1e-6}})


def run(
    asked: Asked, path: Path, monkeypatch: pytest.MonkeyPatch, key: str = "settings"
) -> tuple[Results, Any]:
    monkeypatch.setattr(live, "chat", asked)
    results = Results(path, key)
    servers = {mode: Server("", {"tandem": live.MODES[mode]}) for mode in ("cloud", "fused", "sketch")}
    return results, asyncio.run(live.answers(servers, TASKS, Letters(), results, key))  # type: ignore[arg-type]


def test_a_second_run_goes_on_where_the_first_one_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first, second = tmp_path / "r.jsonl", Asked(most=5), Asked()
    with pytest.raises(ConnectionError):
        run(first, path, monkeypatch)
    with path.open("a") as file:
        file.write('{"settings": "sett')  # and in the middle of a line
    results, refused = run(second, path, monkeypatch)
    assert len(first.questions) == 5
    assert len(second.questions) == 12 - 5
    assert not set(first.questions) & set(second.questions)
    assert len(results.answers) == 12
    assert refused == {}
    assert Results(path, "settings").answers == results.answers


def test_answers_with_other_settings_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    run(Asked(), path, monkeypatch)
    other = Asked()
    run(other, path, monkeypatch, "other settings")
    assert len(other.questions) == 12
    assert len(Results(path, "settings").answers) == 12


def test_a_mode_that_is_refused_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, refused = run(Asked(["sketch"]), tmp_path / "r.jsonl", monkeypatch)
    assert refused == {"sketch": "not this one"}
    assert {answer.mode for answer in results.answers.values()} == {"cloud", "fused"}


def test_a_line_that_is_no_answer_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="line 1"):
        Results(tmp_path / "r.jsonl", "settings")


def answer(mode: str, text: str, seconds: float = 1.0, first_s: float = 0.5, **more: Any) -> Answer:
    stats = msgspec.Raw(json.dumps({"cost": {"usd": more.pop("usd", 1e-6)}}).encode())
    said = {"set": "HumanEval", "task": "0", "score": 1.0} | more
    ids = Letters().encode(text)
    return Answer("", said["set"], said["task"], mode, text, ids, 10, first_s, seconds, said["score"], stats)


def test_figures_compare_with_the_clouds_answers() -> None:
    found = [
        answer("cloud", "abcd", 1.0, 1.0, usd=2e-6),
        answer("fused", "abcx", 0.5, score=0.0),
        answer("cloud, again", "abcd", 9.0),
        answer("device", "zzzz", 0.1),
        answer("sketch", "yyyy", 2.0),
        answer("race, 0.5", "abcd", 1.25, 0.25, usd=1e-6),
        answer("fused", "abcd", 1.0, task="1"),  # without an answer of the cloud's to compare with
    ]
    compared = live.Compared(found)
    assert compared.figures(live.LOSSLESS) == {
        "same_tokens": 0.75,
        "same_tokens_again": 1.0,
        "scores_changed": 1.0,
        "worst_x": 0.5,
        "code_x": 2.0,
        "race_p99_cut": 0.75,
        "race_cost_x": 0.5,
    }
    assert len(compared.rows()) == 6
    assert all(len(row) == len(live.COLUMNS) for row in compared.rows())


def test_an_answer_of_another_length_is_compared_at_its_pace() -> None:
    slow = answer("cloud", "abcd", 3.0, 1.0)  # ten tokens
    fast = msgspec.structs.replace(answer("fused", "abcd", 1.5, 1.0), tokens=4)  # whose ten would take 2.5 s
    assert live.Compared([slow, fast]).ratios("HumanEval", "fused") == pytest.approx([3.0 / 2.5])


def test_figures_without_answers_are_no_numbers() -> None:
    figures = live.Compared([answer("cloud", "abcd")]).figures(live.LOSSLESS)
    assert all(value != value for value in figures.values())


def test_longer_answers_differ_where_the_others_have_ended() -> None:
    assert (
        live.Compared([answer("cloud", "ab"), answer("fused", "abcd")]).figures(live.LOSSLESS)["same_tokens"]
        == 0.5
    )
