"""LiteLLM, with its prefixes for servers of OpenAI's kind and of vLLM's."""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no download

import litellm
from asking import ABOUT_TOWN, KEY, MODEL, QUESTION, TIMEOUT_S, TIPS, Town, tell

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def ask(url: str, prefix: str, question: str, **options: Any) -> Any:
    return litellm.completion(
        f"{prefix}/{MODEL}",
        [{"role": "user", "content": question}],
        api_base=url,
        api_key=KEY,
        max_retries=0,
        timeout=TIMEOUT_S,
        max_tokens=200,
        **options,
    )


def plain(url: str, prefix: str) -> None:
    assert ask(url, prefix, TIPS).choices[0].message.content


def stream(url: str, prefix: str) -> None:
    assert "".join(c.choices[0].delta.content or "" for c in ask(url, prefix, TIPS, stream=True) if c.choices)


def schema(url: str, prefix: str) -> None:
    said = ask(url, prefix, ABOUT_TOWN, response_format=Town).choices[0].message.content
    Town.model_validate_json(said)


def tool(url: str, prefix: str) -> None:
    (call,) = ask(url, prefix, QUESTION, tools=TOOLS).choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"]


def forced(url: str, prefix: str) -> None:
    (call,) = ask(url, prefix, QUESTION, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"]


def response(url: str, prefix: str) -> None:
    asked = litellm.responses(
        input=TIPS, model=f"{prefix}/{MODEL}", api_base=url, api_key=KEY, max_output_tokens=200
    )
    assert asked.output[-1].content[0].text


tell(
    "litellm",
    {
        f"`{prefix}/`, {what}": lambda url, prefix=prefix, use=use: use(url, prefix)
        for prefix in ("openai", "hosted_vllm")
        for what, use in {
            "a chat": plain,
            "streamed": stream,
            "`response_format`": schema,
            "a tool": tool,
            "a tool that has to be called": forced,
            "`responses`": response,
        }.items()
    },
)
