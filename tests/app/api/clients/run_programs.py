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
from tests.app.api.clients.pairs import Pair

PYTHON = Path(__file__).parents[4] / ".venv-clients" / "bin" / "python"
"""Python with the clients' packages, by `make clients`."""
FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("with_*.py"))
MODES = ("cloud", "device", "speculative", "race", "sketch")


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


@asynccontextmanager
async def serving_all(pair: Pair, folder: Path, modes: Sequence[str]) -> AsyncIterator[dict[str, Served]]:
    """Serve modes with a pair, which is closed at the end; gives each by its name. folder: for ledgers."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pair.close)
        found = {}
        for mode in modes:
            backend = ModesBackend(mode, *pair, folder / f"{mode}.sqlite")
            found[mode] = Served(await stack.enter_async_context(serving(backend)), backend)
        yield found


async def run(program: str, served: Mapping[str, Served], timeout_s: float) -> list[Line]:
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
            async with asyncio.timeout(timeout_s):
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
