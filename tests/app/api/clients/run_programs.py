"""Runs the client programs, each in a process with the clients' own packages, against the API in every mode.

A program tells what the client got, and the server which part the mode took in that.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tandem.deployments.request.job import JobStats
from tests.app.api.clients import parts
from tests.app.api.clients.modes_backend import ModesBackend, serving
from tests.app.api.clients.scripted_engine import scripted
from tests.app.api.null_backend import TOKENIZER

PYTHON = Path(__file__).parents[4] / ".venv-clients" / "bin" / "python"
"""Python with the clients' packages, by `make clients`."""
FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("with_*.py"))
MODES = ("cloud", "device", "speculative", "race", "sketch")
TIMEOUT_S = 300.0
TOWN = {"name": "Marworth", "size": "small", "bridges": 3, "mayor": {"name": "Ada"}}
CALLS = {"weather": {"city": "Paris"}, "Town": TOWN, "PartialTown": TOWN}
"""Arguments by tool, of which the first that a prompt names is called."""
SKETCH = "Words: 20\n1. a coat\n2. boots"


class Served(NamedTuple):
    """A mode behind an API of its own."""

    address: str
    backend: ModesBackend


class Line(NamedTuple):
    """Outcome of one feature of a client in one mode: works, in full (mode sketch without a sketch), refused or
    fails."""

    package: str
    version: str
    mode: str
    feature: str
    outcome: str
    error: str = ""


def answer(prompt: str) -> str:
    """Return what a good model would say."""
    if "Write a sketch" in prompt:
        return SKETCH
    if "writing of a short sentence" in prompt:
        return "Take one with you."
    after_tool = "<tool_response>" in prompt
    for name, arguments in CALLS.items():
        if f'"name": "{name}"' in prompt and not (after_tool and name == "weather"):
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    if "Marworth" in prompt:
        return f"```json\n{json.dumps(TOWN)}\n```" if "```" in prompt else json.dumps(TOWN)
    return "It rains in Paris." if after_tool else "Hello, this is a model."


@asynccontextmanager
async def serving_all(folder: Path) -> AsyncIterator[dict[str, Served]]:
    """Serve every mode, each by its name. folder: for ledgers."""
    async with AsyncExitStack() as stack:
        target, small = scripted(answer, "target"), scripted(answer, "small")
        stack.push_async_callback(target.close)
        stack.push_async_callback(small.close)
        found = {}
        for mode in MODES:
            backend = ModesBackend(mode, target, small, TOKENIZER, folder / f"{mode}.sqlite")
            found[mode] = Served(await stack.enter_async_context(serving(backend)), backend)
        yield found


async def run(program: str, served: Mapping[str, Served]) -> list[Line]:
    """Return what a program has told, as far as the modes took their parts."""
    places = [f"{mode}={each.address}" for mode, each in served.items()]
    with tempfile.TemporaryFile() as complaints:
        process = await asyncio.create_subprocess_exec(
            str(PYTHON),
            str(FOLDER / f"{program}.py"),
            *places,
            stdout=asyncio.subprocess.PIPE,
            stderr=complaints,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                lines = await _lines(process.stdout, served)
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        complaints.seek(0)
        assert process.returncode == 0, complaints.read().decode()
    return lines


async def _lines(told: asyncio.StreamReader | None, served: Mapping[str, Served]) -> list[Line]:
    """Return the outcomes, each judged by the answers that were given until it was told."""
    assert told is not None
    lines, about = list[Line](), json.loads(await told.readline())
    async for each in told:
        line = Line(**about, **json.loads(each))
        answers = served[line.mode].backend.answers
        lines.append(judged(line, answers))
        answers.clear()
    return lines


def judged(line: Line, answers: Sequence[JobStats]) -> Line:
    """Return the line, where a feature fails that works without the mode. answers: that it was given."""
    if line.outcome != "works":
        return line
    if line.mode == "sketch" and parts.in_full(answers):
        return line._replace(outcome="in full")
    without = sorted({what for stats in answers for what in parts.missing(line.mode, stats)})
    if without or not answers:
        return line._replace(outcome="fails", error=f"answered without {without or 'the server'}")
    return line
