"""instructor: objects in the four ways in which it asks a server of OpenAI's kind for them."""

from __future__ import annotations

import instructor
from asking import ABOUT_TOWN, KEY, MODEL, TIMEOUT_S, Town, tell
from openai import OpenAI


def ask(url: str, mode: instructor.Mode, stream: bool = False) -> None:
    client = instructor.from_openai(
        OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=TIMEOUT_S), mode=mode
    )
    fields = {
        "model": MODEL,
        "messages": [{"role": "user", "content": ABOUT_TOWN}],
        "max_tokens": 200,
        "max_retries": 0,
    }
    if stream:
        found = list(client.chat.completions.create_partial(response_model=Town, **fields))
        assert found[-1].bridges is not None
    else:
        assert isinstance(client.chat.completions.create(response_model=Town, **fields), Town)


tell(
    "instructor",
    {
        "mode TOOLS": lambda url: ask(url, instructor.Mode.TOOLS),
        "mode TOOLS, streamed": lambda url: ask(url, instructor.Mode.TOOLS, True),
        "mode JSON": lambda url: ask(url, instructor.Mode.JSON),
        "mode JSON_SCHEMA": lambda url: ask(url, instructor.Mode.JSON_SCHEMA),
        "mode MD_JSON": lambda url: ask(url, instructor.Mode.MD_JSON),
    },
)
