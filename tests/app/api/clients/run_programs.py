"""Runs the client programs, each in a process with the clients' own packages, against the API in every mode."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

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


class Line(NamedTuple):
    """Outcome of one feature of a client in one mode: works, refused or fails."""

    package: str
    version: str
    mode: str
    feature: str
    outcome: str
    error: str = ""


def answer(prompt: str) -> str:
    """Return what a good model would say."""
    after_tool = "<tool_response>" in prompt
    for name, arguments in CALLS.items():
        if f'"name": "{name}"' in prompt and not (after_tool and name == "weather"):
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    if "Marworth" in prompt:
        return f"```json\n{json.dumps(TOWN)}\n```" if "```" in prompt else json.dumps(TOWN)
    return "It rains in Paris." if after_tool else "Hello, this is a model."


@asynccontextmanager
async def serving_all(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Serve every mode; gives the addresses by mode. folder: for ledgers."""
    async with AsyncExitStack() as stack:
        target, small = scripted(answer, "target"), scripted(answer, "small")
        stack.push_async_callback(target.close)
        stack.push_async_callback(small.close)
        found = {}
        for mode in MODES:
            backend = ModesBackend(mode, target, small, TOKENIZER, folder / f"{mode}.sqlite")
            found[mode] = await stack.enter_async_context(serving(backend))
        yield found


async def run(program: str, addresses: Mapping[str, str]) -> list[Line]:
    """Return what a program has told."""
    places = [f"{mode}={address}" for mode, address in addresses.items()]
    process = await asyncio.create_subprocess_exec(
        str(PYTHON),
        str(FOLDER / f"{program}.py"),
        *places,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    about, *told = (json.loads(line) for line in said.decode().splitlines())
    return [Line(**about, **each) for each in told]
