"""Pairs of models behind the API: one that says what good models would, and a real one."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import NamedTuple

from tandem.benchmarks.paths import MODELS
from tandem.deployments.pools.engines import LlamacppSettings, build_engine
from tandem.engine.base import Engine
from tandem.engine.gguf.folder import folder_of
from tandem.engine.gguf.header import read_header
from tandem.engine.text.tokenizer import Tokenizer
from tests.app.api.clients.scripted_engine import scripted
from tests.app.api.null_backend import TOKENIZER

TOWN = {"name": "Marworth", "size": "small", "bridges": 3, "mayor": {"name": "Ada"}}
CALLS = {"weather": {"city": "Paris"}, "Town": TOWN, "PartialTown": TOWN}
"""Arguments by tool, of which the first that a prompt names is called."""
SKETCH = "1. a coat\n2. boots\n"


TARGET, SMALL = MODELS / "qwen2.5-coder-1.5b.gguf", MODELS / "qwen2.5-coder-0.5b.gguf"
"""Files of the real ones."""
NO_REAL_PAIR = (
    f"{TARGET} and {SMALL} are not there"
    if not (TARGET.exists() and SMALL.exists())
    else "llama.cpp is not installed: make llamacpp"
    if find_spec("llama_cpp") is None
    else ""
)
"""Why there are none; empty if there are."""


class Pair(NamedTuple):
    """The cloud's model, the device's, and the tokenizer of both."""

    target: Engine
    small: Engine
    tokenizer: Tokenizer

    async def close(self) -> None:
        """Close both."""
        await self.target.close()
        await self.small.close()


def scripted_pair() -> Pair:
    """Return a pair that says what good models would."""
    return Pair(scripted(answer, "target"), scripted(answer, "small"), TOKENIZER)


def real_pair() -> Pair:
    """Return two real models over llama.cpp; greedy, unless a request has a temperature. What they say does not depend
    on how busy the machine is."""
    settings = LlamacppSettings(
        kind="llamacpp", model="", kv_blocks=1536, max_sessions=64, reproducible=True, threads=1
    )
    target, small = (
        build_engine(settings.model_copy(update={"model": str(file)})) for file in (TARGET, SMALL)
    )
    tokenizer = Tokenizer.load(folder_of(TARGET))
    tokenizer.sampling = {"temperature": 0.0}
    return Pair(target, small, tokenizer)


def real_names() -> str:
    """Return the real models' files and quantizations."""
    cloud, device = (f"`{file.stem}` ({read_header(file).quantization})" for file in (TARGET, SMALL))
    return f"{cloud} in the cloud, {device} at the device"


def answer(prompt: str) -> str:
    """Return what a good model would say."""
    if "Write only the outline" in prompt:
        return SKETCH
    if item := re.search(r"one point alone: (.*?)\. Tell", prompt):
        return f"{item[1]}: Take one with you."  # behind the label, with which its prompt ends
    if "writing of a short sentence" in prompt:
        return "Take one with you."
    after_tool = "<tool_response>" in prompt
    for name, arguments in CALLS.items():
        if f'"name": "{name}"' in prompt and not (after_tool and name == "weather"):
            return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    if "Marworth" in prompt:
        return f"```json\n{json.dumps(TOWN)}\n```" if "```" in prompt else json.dumps(TOWN)
    return "It rains in Paris." if after_tool else "Hello, this is a model."
