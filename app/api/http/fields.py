"""Fields of OpenAI's and vLLM's requests that are not implemented: some are accepted, others refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"
_TABLES = re.compile(r"(?<=<!-- fields -->\n).*?(?=<!-- /fields -->)", re.DOTALL)

ACCEPTED = {
    "metadata": "it is not kept",
    "parallel_tool_calls": "text completions call no tools",
    "prompt_cache_key": "prompts share their beginnings in the KV cache without it",
    "prompt_cache_options": "prompts share their beginnings in the KV cache without it",
    "prompt_cache_retention": "memory decides how long a prompt stays in the KV cache",
    "safety_identifier": "keys tell users apart",
    "user": "keys tell users apart",
}
"""Fields that are accepted and have no effect, with the reason."""


class Refused(NamedTuple):
    """A field that is refused.

    unless: values that ask for nothing, and are accepted.
    instead: what there is in its place, or why there is nothing.
    """

    unless: tuple[Any, ...]
    instead: str


REFUSED = {
    "access_programs": Refused((), "keys say what an account may do"),
    "audio": Refused((), "answers are text"),
    "background": Refused((False,), "a stream shows what there is so far"),
    "best_of": Refused((1,), "`/v1/completions` has it, and `n` gives several answers to choose from"),
    "cache_salt": Refused((), "an engine with `prefix_caching: false` shares no prompts"),
    "context_management": Refused((), "a conversation that is too long is refused"),
    "conversation": Refused((), "`previous_response_id` goes on with a response"),
    "echo": Refused((False,), "`/v1/completions` has it"),
    "function_call": Refused(("none",), "OpenAI has replaced it by `tool_choice`"),
    "functions": Refused(([],), "OpenAI has replaced them by `tools`"),
    **dict.fromkeys(
        ("guided_choice", "guided_grammar", "guided_json", "guided_regex"),
        Refused((), "vLLM has replaced it by `structured_outputs`"),
    ),
    "image": Refused((), "answers are text"),
    "include_stop_str_in_output": Refused((False,), "a stop string is never part of an answer"),
    "length_penalty": Refused((1,), "there is no beam search"),
    "max_tool_calls": Refused(
        (), "the client runs the tools, and `parallel_tool_calls: false` asks for one call"
    ),
    "modalities": Refused((["text"],), "answers are text"),
    "moderation": Refused((), "nothing is moderated"),
    "prediction": Refused((), "engines look up drafts in the prompt: `lookup`"),
    "prompt": Refused((), "`/v1/completions` has it, and no server keeps templates of prompts"),
    "reasoning": Refused(({},), "`/v1/responses` has it, and chats have `reasoning_effort`"),
    "reasoning_effort": Refused((), "chats have it, and `/v1/responses` has `reasoning.effort`"),
    "service_tier": Refused(("auto", "default"), "there is one tier"),
    "skip_special_tokens": Refused((True,), "special tokens are never part of an answer's text"),
    "spaces_between_special_tokens": Refused((True,), "special tokens are never part of an answer's text"),
    "store": Refused((False,), "`/v1/responses` keeps responses for a while"),
    "suffix": Refused(("",), "`/v1/completions` has it, for models with tokens for filling in"),
    "text": Refused((), "`response_format` gives a form, and `/v1/responses` has this"),
    "tool_choice": Refused(("none", "auto"), "chats and `/v1/responses` call tools"),
    "tools": Refused(([],), "chats and `/v1/responses` call tools"),
    "truncation": Refused(("disabled",), "a conversation that is too long is refused"),
    "truncate_prompt_tokens": Refused((), "a prompt that is too long is refused"),
    "use_beam_search": Refused((False,), "there is no beam search"),
    "verbosity": Refused(("medium",), "a prompt can say how long the answer should be"),
    "web_search_options": Refused((), "nothing is searched"),
}
"""Fields that would change the answer and are not implemented."""


def drop_unused(given: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the fields without those that have no effect. known: fields that the form has itself."""
    return {name: value for name, value in given.items() if name in known or not _unused(name, value)}


def refusal(name: str) -> str:
    """Return why a field that no form has is refused."""
    why = f"{name} is not supported by this server"
    return f"{why}: {REFUSED[name].instead}" if name in REFUSED else why


def _unused(name: str, value: Any) -> bool:
    if name in ACCEPTED:
        return True
    unless = REFUSED[name].unless if name in REFUSED else ()
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in unless)


def markdown() -> str:
    """Return both tables."""
    lines = ["| accepted, without effect | because |", "|---|---|"]
    lines += [f"| `{name}` | {why} |" for name, why in ACCEPTED.items()]
    lines += ["", "| refused | but for | because |", "|---|---|---|"]
    for name, (unless, instead) in REFUSED.items():
        values = " or ".join(f"`{json.dumps(value)}`" for value in unless)
        lines.append(f"| `{name}` | {values} | {instead} |")
    return "\n".join(lines) + "\n"


def updated(page: str) -> str:
    """Return the page with the tables between its two marks."""
    return _TABLES.sub(lambda _: markdown(), page)


if __name__ == "__main__":
    DOCS.write_text(updated(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
