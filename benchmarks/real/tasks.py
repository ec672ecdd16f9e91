"""Public prompts by set, and the scores of their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tandem.benchmarks.real.sandbox import passes

Row = dict[str, Any]


class Task(NamedTuple):
    """A prompt.

    set: name of its set.
    name: number of its row.
    tokens: most of its answer.
    """

    set: str
    name: str
    question: str
    tokens: int
    row: Row

    def score(self, answer: str) -> float | None:
        """Return 1.0 for a right answer, 0.0 for a wrong one; None if the set has no right answers."""
        scored = SETS[self.set].scored
        return None if scored is None else float(scored(self.row, answer))


class TaskSet(NamedTuple):
    """A set of prompts.

    file: of its rows.
    question: makes the prompt of a row.
    tokens: most of an answer.
    scored: tells whether an answer to a row is right; None if there are no right answers.
    """

    file: str
    question: Callable[[Row], str]
    tokens: int
    scored: Callable[[Row, str], bool] | None = None


def code_of(answer: str) -> str:
    """Return the first block of code of an answer, or all of it if there is none."""
    found = re.search(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", answer, re.DOTALL)
    return found[1] if found else answer


def solves(row: Row, answer: str) -> bool:
    """Return whether an answer passes a HumanEval row's tests; it may be a whole function or its body."""
    return passes(f"{row['prompt']}\n{code_of(answer)}\n{row['test']}\ncheck({row['entry_point']})\n")


def same_number(row: Row, answer: str) -> bool:
    """Return whether an answer's last number is a GSM8K row's."""
    return _last_number(answer) == _last_number(row["answer"])


def _last_number(text: str) -> float | None:
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None


SETS = {
    "HumanEval": TaskSet(
        "HumanEval.jsonl",
        lambda row: f"Complete this function. Reply with the code only.\n\n{row['prompt']}",
        256,
        solves,
    ),
    "GSM8K": TaskSet(
        "gsm8k_test.jsonl",
        lambda row: f"{row['question']}\n\nThink step by step, and end with: The answer is NUMBER.",
        320,
        same_number,
    ),
    "SpecBench": TaskSet("spec_bench.jsonl", lambda row: row["turns"][0], 96),
    "Vicuna": TaskSet("vicuna_bench.jsonl", lambda row: row["turns"][0], 96),
}


def tasks(count: int, folder: Path) -> list[Task]:
    """Return `count` tasks of each set, evenly spread over it; sets take turns."""
    sets = []
    for name, one in SETS.items():
        with (folder / one.file).open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        chosen = [i * len(rows) // count for i in range(count)]
        sets.append([Task(name, str(i), one.question(rows[i]), one.tokens, rows[i]) for i in chosen])
    return [task for turn in zip(*sets, strict=True) for task in turn]
