"""Acceptances are recorded where the drafter's likeliest token is the target's own; a run that was broken off goes
on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tandem.benchmarks.real import recording
from tandem.benchmarks.real.recording import CONTEXT, Recorded, Written, accepted, answers, left, read
from tandem.benchmarks.real.tasks import Task
from tandem.engine.base import Sampling, Tokens

RECORDED = [Recorded("Vicuna", "1", 2, "1101"), Recorded("GSM8K", "2", 7, "0")]
TASKS = [Task("Vicuna", str(i), f"question {i}", 8, {}) for i in range(4)]


class Counting:
    """A drafter that expects each token's successor; it counts, beyond its vocabulary, on nonsense even more."""

    def __init__(self) -> None:
        self.computed = 0

    def remove(self, row: int, first: int, end: int) -> None:
        self.computed = first

    def forward(self, batch: Sequence[tuple[int, int, Sequence[int], int]]) -> np.ndarray:
        ((row, start, ids, wanted),) = batch
        assert (row, start, wanted) == (0, self.computed, len(ids))
        self.computed += len(ids)
        logits = np.zeros((len(ids), 130))
        logits[range(len(ids)), [(token + 1) % 128 for token in ids]] = 1
        logits[:, 129] = 2
        return logits


@pytest.mark.parametrize("chunk", [2, 256])
def test_a_draft_is_judged_by_the_token_in_its_place(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    row = SimpleNamespace(BatchRow=lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "tandem.engine.llamacpp.model", row)
    monkeypatch.setattr(recording, "CHUNK", chunk)
    drafter = Counting()
    for _ in range(2):  # nothing is left of the answer before
        assert accepted(drafter, Written((10, 11), [12, 13, 99, 100]), 128) == "1101"  # type: ignore[arg-type]


class Writer:
    """An engine that answers with the prompt's tokens, and counts how many it writes at once."""

    def __init__(self) -> None:
        self.open_now = self.most = 0

    async def open(self, prompt: Sequence[int], sampling: Sampling) -> Writer:
        self.open_now += 1
        self.most = max(self.most, self.open_now)
        self._ids = list(prompt)[: sampling.max_tokens]
        return self

    async def generate(self) -> AsyncIterator[Tokens]:
        ids = self._ids
        await asyncio.sleep(0)
        for token in ids:
            yield Tokens([token], None)

    async def cancel(self) -> None:
        self.open_now -= 1


class Numbers:
    """A tokenizer whose prompt of "question i" has i tokens; of the last one, more than the context."""

    def render_chat(self, messages: list[dict[str, str]]) -> list[int]:
        number = int(messages[0]["content"].split()[1])
        return [number] * (CONTEXT if number == 3 else number)


async def test_answers_come_in_order_and_some_at_once() -> None:
    engine = Writer()
    written = [(task.name, one) async for task, one in answers(engine, Numbers(), TASKS, 2)]  # type: ignore[arg-type]
    # the empty one, and the one beyond the context, are left out
    assert written == [("1", Written((1,), [1])), ("2", Written((2, 2), [2, 2]))]
    assert (engine.most, engine.open_now) == (2, 0)


def test_a_run_goes_on_after_the_last_whole_recording(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    assert left(TASKS, file) == TASKS
    file.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in RECORDED) + b'{"set": "Vicu')
    assert left(TASKS, file) == [TASKS[0], *TASKS[2:]]
    assert read(file) == RECORDED
