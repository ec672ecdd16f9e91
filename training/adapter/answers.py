"""Write a corpus of a model's own answers, which is what its adapter will draft:

    tandem adapter answers MODEL --questions FILE [FILE …] --out CORPUS

MODEL is as for training, or a GGUF file of that model, which llama.cpp runs. Each line of FILE is {"question": …}.
Answers are greedy. CORPUS gets each when it is complete, and a second run goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from tandem.deployments.pools.engines import LlamacppSettings, TorchSettings, build_engine
from tandem.deployments.pools.models import model_folder
from tandem.engine.base import Engine, Sampling
from tandem.engine.models.model_folder import engine_kinds
from tandem.engine.text.tokenizer import Tokenizer
from tandem.training.adapter.texts import Line, prompt_of, read

AT_ONCE = 8
"""Questions answered together."""
BLOCK = 16


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tandem adapter answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="name, folder, GGUF file, or hub's org/name")
    parser.add_argument("--questions", type=Path, nargs="+", required=True, metavar="FILE", help="JSON lines")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="CORPUS", help="file to write, or go on with"
    )
    parser.add_argument("--length", type=int, default=512, help="tokens of question and answer (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        asked = {line.question: None for file in options.questions for line in read(file)}
        for line in _resumed(options.out):
            asked.pop(line.question, None)
        tokenizer = Tokenizer.load(model_folder(options.model))
        short = [question for question in asked if len(prompt_of(tokenizer, question)) < options.length]
        engine = _engine(options.model, options.length, options.threads)
        with Progress(console=Console(stderr=True)) as progress, options.out.open("ab") as corpus:
            bar = progress.add_task("answers", total=len(short))

            def keep(line: Line) -> None:
                corpus.write(msgspec.json.encode(line) + b"\n")
                corpus.flush()
                progress.advance(bar)

            asyncio.run(_answer(engine, tokenizer, short, options.length, keep))
    except (OSError, ValueError) as error:
        sys.exit(str(error))
    print(f"{options.out}: {len(short)} new answers; {len(asked) - len(short)} questions were too long")


def _resumed(corpus: Path) -> list[Line]:
    """Return the lines that are there already; a last line that was broken off is cut off."""
    if not corpus.exists():
        return []
    with corpus.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return read(corpus)


def _engine(model: str, length: int, threads: int) -> Engine:
    """Return an engine with room for AT_ONCE sessions of `length` tokens."""
    kind = LlamacppSettings if "llamacpp" in engine_kinds(model_folder(model)) else TorchSettings
    said = {"kv_blocks": AT_ONCE * -(-length // BLOCK), "block_size": BLOCK, "max_sessions": AT_ONCE}
    name = "llamacpp" if kind is LlamacppSettings else "torch"
    return build_engine(kind.model_validate(said | {"kind": name, "model": model, "threads": threads}))


async def _answer(
    engine: Engine,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    length: int,
    keep: Callable[[Line], object],
) -> None:
    """Answer the questions; `keep` gets each answer when it is complete. length: tokens of question and answer."""
    free = asyncio.Semaphore(AT_ONCE)

    async def answer(question: str) -> None:
        prompt, ids, finish = prompt_of(tokenizer, question), list[int](), None
        async with free:
            session = await engine.open(prompt, Sampling(max_tokens=length - len(prompt)))
            async for tokens in session.generate():
                ids += tokens.ids
                finish = tokens.finish
            await session.cancel()
        keep(Line(question, tokenizer.decode(ids), ended=finish == "stop"))

    try:
        async with asyncio.TaskGroup() as group:
            for question in questions:
                group.create_task(answer(question))
    finally:
        await engine.close()
