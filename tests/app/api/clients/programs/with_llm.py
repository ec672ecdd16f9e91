"""Simon Willison's llm, as its users type it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from asking import ABOUT_TOWN, MODEL, QUESTION, RAIN, TIPS, Town, tell
from click.testing import CliRunner
from llm.cli import cli

TOOL = f"""
def weather(city: str) -> str:
    "Tell the weather of a city."
    return {RAIN!r}
"""

HOME = tempfile.TemporaryDirectory()
"""A user's folder, shared by all prompts: in a new one llm spends seconds on laying out its database."""


class Refused(Exception):
    """llm printed a refusal."""

    status_code = 400


def llm(url: str, *words: str) -> tuple[str, str]:
    """Return what `llm` prints, and what it prints on stderr."""
    models = [
        {
            "model_id": "tandem",
            "model_name": MODEL,
            "api_base": url,
            "supports_schema": True,
            "supports_tools": True,
        }
    ]
    (Path(HOME.name) / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    words = ("-m", "tandem", "-o", "max_tokens", "200", *words)
    said = CliRunner().invoke(cli, words, input="", env={"LLM_USER_PATH": HOME.name}, catch_exceptions=True)
    if said.exit_code:
        raise (Refused if "400" in said.output else RuntimeError)(said.output, said.exception)
    return said.stdout, said.stderr


def prompt(url: str, *words: str) -> None:
    said, _ = llm(url, *words, TIPS)
    assert said.strip()


def schema(url: str, *words: str) -> None:
    said, _ = llm(url, *words, "--schema", json.dumps(Town.model_json_schema()), ABOUT_TOWN)
    Town.model_validate_json(said)


def tool(url: str, *words: str) -> None:
    said, calls = llm(url, *words, "--functions", TOOL, "--td", QUESTION)  # --td shows the calls
    assert RAIN in calls, calls
    assert said.strip()


tell(
    "llm",
    {
        "a prompt": prompt,
        "a prompt, `--no-stream`": lambda url: prompt(url, "--no-stream"),
        "`--schema`": schema,
        "`--schema`, `--no-stream`": lambda url: schema(url, "--no-stream"),
        "`--functions`": tool,
        "`--functions`, `--no-stream`": lambda url: tool(url, "--no-stream"),
    },
)
