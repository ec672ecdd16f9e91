"""Acceptances recorded from real models: which of the target's tokens its drafter would have drafted.

With greedy decoding that is all there is to know of a pair: a rejected draft is replaced by the target's token, so the
sequence is the same for every window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.real.results import Answer
from tandem.benchmarks.real.tasks import Task
from tandem.engine.tokenizer import Tokenizer

CONTEXT = 2048  # tokens of prompt and answer


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of the target's.

    set, task: names.
    prompt_tokens: prompt length.
    acceptance: by output position, 1 if the drafter would have drafted the target's token, else 0.
    """

    set: str
    task: str
    prompt_tokens: int
    acceptance: str


def record(
    drafter: Path, tokenizer: Tokenizer, asked: Mapping[tuple[str, str], Task], answers: Iterable[Answer]
) -> Iterator[Recorded]:
    """Yield the recording of each answer, by one forward pass of the drafter (a GGUF file) over prompt and answer;
    those that are longer than its context are left out. asked: tasks by set and name."""
    from llama_cpp import Llama

    model = Llama(str(drafter), n_ctx=CONTEXT, logits_all=True, verbose=False)
    for answer in report.progress(list(answers), "acceptances"):
        question = asked[answer.set, answer.task].question
        prompt = list(tokenizer.render_chat([{"role": "user", "content": question}]))
        if not answer.ids or len(prompt) + len(answer.ids) > CONTEXT:
            continue
        model.reset()
        model.eval([*prompt, *answer.ids])
        drafted = model.scores[len(prompt) - 1 : len(prompt) - 1 + len(answer.ids)].argmax(-1)
        same = "".join("01"[bool(one)] for one in drafted == np.asarray(answer.ids))
        yield Recorded(answer.set, answer.task, len(prompt), same)


def write(path: Path, recorded: Iterable[Recorded]) -> None:
    """Write a file of recordings, one a line."""
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in recorded))


def read(path: Path) -> list[Recorded]:
    """Return the recordings of a file."""
    return [msgspec.json.decode(line, type=Recorded) for line in path.read_bytes().splitlines()]
