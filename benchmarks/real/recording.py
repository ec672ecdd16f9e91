"""Acceptances recorded from real models: which of the target's tokens its drafter would have drafted.

    tandem benchmark real_record [--prompts 20] [--out acceptance.jsonl] [--models DIR] [--streams 4]

The target answers prompts of the four sets, several at once, in its engine over llama.cpp and without an application;
the drafter reads every answer in one pass. With greedy decoding that is all there is to know of a pair: a rejected
draft is replaced by the target's token, so the sequence is the same for every window. The load of the machine changes
nothing but the time it takes.

accepted_SET: share of the target's tokens that the drafter would have drafted.

Every recording is kept in the file at once; a second run goes on from there, also with more prompts. Recordings of
other models belong in another file. Read by `real_gpu` and `calibration --real`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tandem.benchmarks import report
from tandem.benchmarks.paths import DATA, MODELS, NO_DATA
from tandem.benchmarks.real.tasks import Task, tasks
from tandem.deployments.pools.engines import LlamacppSettings, build_engine
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Engine, Sampling
from tandem.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tandem.engine.llamacpp.model import LlamaModel

CONTEXT = 2048  # tokens of prompt and answer
CHUNK = 256  # positions of a pass of the drafter


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


class Written(NamedTuple):
    """Tokens of a prompt and of its answer, the end's own token included."""

    prompt: tuple[int, ...]
    ids: list[int]


def accepted(drafter: LlamaModel, written: Written, vocab_size: int) -> str:
    """Return a recording's acceptance. vocab_size: tokens that the drafter may say."""
    from tandem.engine.llamacpp.model import BatchRow

    drafter.remove(0, 0, -1)
    read, drafts = [*written.prompt, *written.ids[:-1]], list[int]()
    for at in range(0, len(read), CHUNK):
        piece = read[at : at + CHUNK]
        logits = drafter.forward([BatchRow(0, at, piece, len(piece))])
        drafts += logits[:, :vocab_size].argmax(-1).tolist()
    drafts = drafts[len(written.prompt) - 1 :]
    return "".join("01"[draft == own] for draft, own in zip(drafts, written.ids, strict=True))


async def answers(
    target: Engine, tokenizer: Tokenizer, asked: Sequence[Task], streams: int
) -> AsyncIterator[tuple[Task, Written]]:
    """Yield the tasks' greedy answers in order, `streams` of them written at once; empty ones, and prompts beyond the
    context, are left out."""
    places = asyncio.Semaphore(streams)

    async def answer(task: Task) -> Written:
        prompt = tuple(tokenizer.render_chat([{"role": "user", "content": task.question}]))
        if len(prompt) + task.tokens > CONTEXT:
            return Written(prompt, [])
        async with places:
            session = await target.open(prompt, Sampling(max_tokens=task.tokens))
            ids = [token async for tokens in session.generate() for token in tokens.ids]
            await session.cancel()
            return Written(prompt, ids)

    async with asyncio.TaskGroup() as group:
        writing = [(task, group.create_task(answer(task))) for task in asked]
        for task, written in report.progress(writing, "acceptances"):
            if (await written).ids:
                yield task, await written


async def record(target: Path, drafter: Path, asked: Sequence[Task], streams: int, out: Path) -> None:
    """Add the recordings of the tasks to the file. target, drafter: GGUF files of one vocabulary."""
    from tandem.engine.llamacpp.model import LlamaModel

    threads = len(os.sched_getaffinity(0))
    engine = build_engine(
        LlamacppSettings(
            kind="llamacpp",
            model=str(target),
            threads=threads,
            kv_blocks=streams * CONTEXT // 16,
            max_sessions=streams,
        )
    )
    reader = LlamaModel(drafter, cells=CONTEXT, rows=1, batch_tokens=CHUNK, threads=threads)
    tokenizer = Tokenizer.load(model_folder(str(target)))
    with out.open("ab") as file:
        async for task, written in answers(engine, tokenizer, asked, streams):
            same = accepted(reader, written, engine.info.vocab_size)
            line = Recorded(task.set, task.name, len(written.prompt), same)
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
    await engine.close()


def read(path: Path) -> list[Recorded]:
    """Return the recordings of a file."""
    return [msgspec.json.decode(line, type=Recorded) for line in path.read_bytes().splitlines()]


def left(asked: Sequence[Task], path: Path) -> list[Task]:
    """Return the tasks that the file has no recording of; a last line that was broken off is cut off."""
    if not path.exists():
        return list(asked)
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    there = {(one.set, one.task) for one in read(path)}
    return [task for task in asked if (task.set, task.name) not in there]


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("real_record", __doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the models")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b.gguf")
    parser.add_argument("--drafter", default="qwen2.5-coder-0.5b.gguf", help="with the target's vocabulary")
    parser.add_argument("--prompts", type=int, default=20, help="of each set (default 20)")
    parser.add_argument("--streams", type=int, default=4, help="answers written at once (default 4)")
    parser.add_argument("--out", type=Path, default=Path("acceptance.jsonl"), help="file of the recordings")
    options = parser.parse_args(arguments)
    if not (DATA / "prompts").is_dir():
        raise SystemExit(NO_DATA)
    asked = tasks(options.prompts, DATA / "prompts")
    models = options.models / options.target, options.models / options.drafter
    asyncio.run(record(*models, left(asked, options.out), options.streams, options.out))
    bits: dict[str, str] = {}
    for one in read(options.out):
        bits[one.set] = bits.get(one.set, "") + one.acceptance
    shares = {f"accepted_{name}": round(found.count("1") / len(found), 4) for name, found in bits.items()}
    report.figures("real_record", shares)
