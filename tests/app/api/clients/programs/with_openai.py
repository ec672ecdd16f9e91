"""OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

from asking import ABOUT_TOWN, KEY, MODEL, QUESTION, TIMEOUT_S, TIPS, Town, tell
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel


class weather(BaseModel):
    """Tells the weather of a city."""

    city: str


def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT_S)


def chat(question: str, **options: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": asked, "max_tokens": 200} | options


def response(question: str, **options: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": question, "max_output_tokens": 200} | options


TOOLS = [pydantic_function_tool(weather)]
FLAT = [
    {
        "type": "function",
        "name": "weather",
        "description": weather.__doc__,
        "parameters": TOOLS[0]["function"]["parameters"],
        "strict": True,
    }
]


def plain(url: str) -> None:
    assert client(url).chat.completions.create(**chat(TIPS)).choices[0].message.content


def stream(url: str) -> None:
    with client(url).chat.completions.stream(**chat(TIPS)) as events:
        assert events.get_final_completion().choices[0].message.content


def parse(url: str) -> None:
    found = client(url).chat.completions.parse(**chat(ABOUT_TOWN, response_format=Town))
    assert isinstance(found.choices[0].message.parsed, Town)


def parse_stream(url: str) -> None:
    with client(url).chat.completions.stream(**chat(ABOUT_TOWN, response_format=Town)) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, Town)


def tool(url: str, **options: Any) -> None:
    (call,) = (
        client(url)
        .chat.completions.parse(**chat(QUESTION, tools=TOOLS, **options))
        .choices[0]
        .message.tool_calls
    )
    assert isinstance(call.function.parsed_arguments, weather)


def tool_stream(url: str) -> None:
    with client(url).chat.completions.stream(**chat(QUESTION, tools=TOOLS)) as events:
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, weather)


def text(url: str) -> None:
    assert client(url).completions.create(model=MODEL, prompt=TIPS, max_tokens=20).choices[0].text


def respond(url: str) -> None:
    assert client(url).responses.create(**response(TIPS)).output_text


def respond_stream(url: str) -> None:
    with client(url).responses.stream(**response(TIPS)) as events:
        for _ in events:
            pass
        assert events.get_final_response().output_text


def respond_parse(url: str) -> None:
    assert isinstance(
        client(url).responses.parse(**response(ABOUT_TOWN, text_format=Town)).output_parsed, Town
    )


def respond_tool(url: str) -> None:
    found = client(url).responses.create(**response(QUESTION, tools=FLAT))
    (call,) = [item for item in found.output if item.type == "function_call"]
    assert json.loads(call.arguments)["city"]


tell(
    "openai",
    {
        "a chat": plain,
        "a chat, streamed": stream,
        "a chat, `parse`": parse,
        "a chat, `parse`, streamed": parse_stream,
        "a chat, a tool": tool,
        "a chat, a tool, streamed": tool_stream,
        "a chat, a tool that has to be called": lambda url: tool(url, tool_choice="required"),
        "a text": text,
        "a response": respond,
        "a response, streamed": respond_stream,
        "a response, `parse`": respond_parse,
        "a response, a tool": respond_tool,
    },
)
