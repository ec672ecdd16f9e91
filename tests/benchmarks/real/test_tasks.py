"""Prompts and scores: the sets' own solutions are right, others are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.benchmarks.real.tasks import SETS, Task, code_of, same_number, solves, tasks

ADD = {
    "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """Sum."""\n',
    "entry_point": "total",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
}
WHOLE = "def total(numbers: List[int]) -> int:\n    return sum(numbers)\n"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (WHOLE, True),
        (f"Here you are:\n```python\n{WHOLE}```\nIt sums.", True),
        (f"```\n{WHOLE}", True),  # cut off after the code
        ("    return sum(numbers)\n", True),  # the body alone
        (WHOLE.replace("sum", "max"), False),
        ("def total(numbers):\n    return (", False),
        ("I cannot.", False),
        ("", False),
    ],
)
def test_code_is_right_if_it_passes_its_tests(answer: str, right: bool) -> None:
    assert solves(ADD, answer) is right


def test_only_the_first_block_is_code() -> None:
    assert code_of("a\n```py\nx = 1\n```\nb\n```\ny = 2\n```") == "x = 1\n"
    assert code_of("x = 1") == "x = 1"


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("She makes $1,800.", True),
        ("9 * 200 = 1800.00", True),
        ("1800 in all, of 2 kinds", False),
        ("-1800", False),
        ("none", False),
    ],
)
def test_the_last_number_is_the_answer(answer: str, right: bool) -> None:
    assert same_number({"answer": "9 * 200 = <<9*200=1800>>1800\n#### 1,800"}, answer) is right


def test_tasks_are_spread_over_their_sets_which_take_turns(tmp_path: Path) -> None:
    row = {**ADD, "question": "q", "answer": "#### 1", "turns": ["t"]}
    for one in SETS.values():
        (tmp_path / one.file).write_text("".join(json.dumps({**row, "number": i}) + "\n" for i in range(10)))
    found = tasks(2, tmp_path)
    assert [task.set for task in found] == [*SETS, *SETS]
    assert [task.row["number"] for task in found] == [0] * 4 + [5] * 4
    assert {(task.set, task.name) for task in tasks(5, tmp_path)} >= {(found[0].set, found[0].name)}
    assert all(task.question for task in found)


def test_a_set_without_right_answers_has_no_score() -> None:
    assert Task("Vicuna", "0", "?", 8, {}).score("anything") is None
    assert Task("GSM8K", "0", "?", 8, {"answer": "#### 3"}).score("3") == 1.0
