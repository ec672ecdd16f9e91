"""OpenAI's Agents SDK, through chat completions and through its default, Responses."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from asking import ABOUT_TOWN, KEY, MODEL, QUESTION, TIMEOUT_S, TIPS, Town, check_agent, tell, weather
from openai import AsyncOpenAI

set_tracing_disabled(True)
CHATS, RESPONSES = OpenAIChatCompletionsModel, OpenAIResponsesModel


def ask(
    url: str,
    kind: type[OpenAIChatCompletionsModel | OpenAIResponsesModel],
    question: str = QUESTION,
    stream: bool = False,
    **options: Any,
) -> Any:
    async def asked() -> Any:
        async with AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT_S) as client:
            model: Model = kind(model=MODEL, openai_client=client)
            agent = Agent("Clerk", model=model, model_settings=ModelSettings(max_tokens=200), **options)
            if not stream:
                return (await Runner.run(agent, question)).final_output
            streamed = Runner.run_streamed(agent, question)
            async for _ in streamed.stream_events():
                pass
            return streamed.final_output

    return asyncio.run(asked())


def plain(url: str, kind: Any) -> None:
    assert ask(url, kind, TIPS)


def tool(url: str, kind: Any, stream: bool = False) -> None:
    check_agent(ask(url, kind, tools=[function_tool(weather)], stream=stream))


def typed(url: str, kind: Any) -> None:
    assert isinstance(ask(url, kind, ABOUT_TOWN, output_type=Town), Town)


def tool_and_type(url: str, kind: Any) -> None:
    town = ask(url, kind, ABOUT_TOWN + " " + QUESTION, tools=[function_tool(weather)], output_type=Town)
    check_agent(town)
    assert isinstance(town, Town)


tell(
    "openai-agents",
    {
        f"{name}, {what}": lambda url, kind=kind, use=use: use(url, kind)
        for kind, name in ((CHATS, "chat completions"), (RESPONSES, "Responses"))
        for what, use in {
            "no tool": plain,
            "a tool": tool,
            "a tool, streamed": lambda url, kind: tool(url, kind, True),
            "`output_type`": typed,
            "a tool and `output_type`": tool_and_type,
        }.items()
    },
)
