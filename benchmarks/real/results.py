"""Answers of a run, kept in a file as they come, so that a run that was broken off goes on."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer.

    settings: all that an answer depends on beside task and mode.
    set, task, mode: names.
    text: the answer.
    ids: its tokens, as the target's tokenizer cuts the text.
    tokens: number of its tokens, as the server counts them.
    first_s, last_s: seconds to the first token, and to the last one.
    score: 1 if it is right, 0 if not; None if nothing is.
    stats: what the server reports.
    """

    settings: str
    set: str
    task: str
    mode: str
    text: str
    ids: list[int]
    tokens: int
    first_s: float
    last_s: float
    score: float | None
    stats: msgspec.Raw

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what tells it from others of its settings."""
        return self.mode, self.set, self.task

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, the prompt's time included."""
        return self.tokens / self.last_s

    def seconds(self, tokens: int) -> float:
        """Return the seconds that so many tokens would take at the answer's pace."""
        pace_s = (self.last_s - self.first_s) / max(1, self.tokens - 1)
        return self.first_s + (tokens - 1) * pace_s

    @property
    def usd(self) -> float:
        """Dollars that it costs, as the server accounts them."""
        cost: float = msgspec.json.decode(self.stats)["cost"]["usd"]
        return cost


def read(path: Path) -> list[Answer]:
    """Return the answers of a file, without a last line that was broken off. Raises ValueError for another line that
    is none."""
    answers = []
    for number, line in enumerate(path.read_bytes().rpartition(b"\n")[0].splitlines(), 1):
        try:
            answers.append(msgspec.json.decode(line, type=Answer))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return answers


def last_run(path: Path, modes: Collection[str]) -> list[Answer]:
    """Return the answers of a file in these modes that have the settings of the last one. Raises ValueError if there
    are none."""
    answers = [answer for answer in read(path) if answer.mode in modes]
    if not answers:
        raise ValueError(f"{path}: there are no answers in the modes {', '.join(modes)}")
    return [answer for answer in answers if answer.settings == answers[-1].settings]


class Results:
    """Answers with one kind of settings, in a file that may have others' too.

    answers: by key.
    """

    def __init__(self, path: Path, settings: str) -> None:
        """Read what is there; a last line that was broken off is cut off. Raises ValueError for another line that is
        no answer."""
        self._path = path
        self.answers: dict[tuple[str, str, str], Answer] = {}
        if not path.exists():
            return
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
        self.answers = {answer.key: answer for answer in read(path) if answer.settings == settings}

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        self.answers[answer.key] = answer
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")
            file.flush()
            os.fsync(file.fileno())
