"""LangChain: chats, objects in its three ways, and an agent with a tool."""

from __future__ import annotations

import json
from typing import Any

from asking import ABOUT_TOWN, KEY, MODEL, QUESTION, TIMEOUT_S, TIPS, Town, check_agent, tell, weather
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI


def model(url: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key=KEY,
        model=MODEL,
        max_retries=0,
        timeout=TIMEOUT_S,
        max_completion_tokens=200,
        **options,
    )


def plain(url: str) -> None:
    assert model(url).invoke(TIPS).content


def stream(url: str) -> None:
    assert "".join(str(part.content) for part in model(url).stream(TIPS))


def typed(url: str, method: str) -> None:
    asked = model(url).with_structured_output(Town, method=method)
    about = ABOUT_TOWN
    if method == "json_mode":  # it tells the model nothing
        about += f" In JSON of this schema: {json.dumps(Town.model_json_schema())}"
    assert isinstance(asked.invoke(about), Town)


def agent(url: str, **options: Any) -> None:
    clerk = create_agent(model(url, **options), tools=[weather])
    found = clerk.invoke({"messages": [{"role": "user", "content": QUESTION}]})
    check_agent(found["messages"][-1].content)


def typed_agent(url: str) -> None:
    clerk = create_agent(model(url), tools=[weather], response_format=Town)
    found = clerk.invoke({"messages": [{"role": "user", "content": f"{ABOUT_TOWN} {QUESTION}"}]})
    check_agent(found["structured_response"])


tell(
    "langchain-openai",
    {
        "a chat": plain,
        "streamed": stream,
        "`with_structured_output`, `json_schema`": lambda url: typed(url, "json_schema"),
        "`with_structured_output`, `function_calling`": lambda url: typed(url, "function_calling"),
        "`with_structured_output`, `json_mode`": lambda url: typed(url, "json_mode"),
        "an agent with a tool": agent,
        "an agent with a tool and `response_format`": typed_agent,
        "Responses, an agent with a tool": lambda url: agent(url, use_responses_api=True),
    },
)
