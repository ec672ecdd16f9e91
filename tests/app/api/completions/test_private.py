"""Names, addresses and numbers do not reach the engines, and are in the answers as if they had."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError

from tandem.app.api.http.settings import ApiSettings
from tests.app.api.null_backend import TOKENIZER, NullBackend

ASKED = "I am Anna Svensson: write to anna@example.org."
SEEN = "I am <NAME_1> <NAME_2>: write to <EMAIL_1>."
SAYS, MEANT = "Dear <NAME_1>, <EMAIL_1> < <NAME_3>", "Dear Anna, anna@example.org < <NAME_3>"
REPLACED: dict[str, Any] = {"tandem": {"privacy": "replaced"}}
HIDDEN = {"name": 2, "email": 1}


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS, context=8192)


def prompts(backend: NullBackend) -> list[str]:
    return [TOKENIZER.decode(list(job.prompt)) for job in backend.jobs]


def asked(text: str = ASKED) -> list[Any]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("burst", [1, 3, 100])
async def test_every_choice_of_a_stream(openai: AsyncOpenAI, backend: NullBackend, burst: int) -> None:
    backend.burst = burst
    said, why = {0: "", 1: ""}, []
    async for chunk in await openai.chat.completions.create(
        model="null", messages=asked(), stream=True, n=2, extra_body=REPLACED
    ):
        choice, extension = chunk.choices[0], chunk.model_extra or {}
        said[choice.index] += choice.delta.content or ""
        runs = extension["tandem"]["origins"]
        assert sum(size for _, size in runs) == len(choice.delta.content or "")
        why += [extension["tandem"]["why"]] if "why" in extension["tandem"] else []
    assert said == {0: MEANT, 1: MEANT}
    assert [reasons["replaced"] for reasons in why] == [HIDDEN, HIDDEN]
    assert all(SEEN in prompt and "Anna" not in prompt for prompt in prompts(backend))
    assert [job.question and job.question.text for job in backend.jobs] == [SEEN, SEEN]


async def test_as_it_is(openai: AsyncOpenAI, backend: NullBackend) -> None:
    """Without the wish, and where nothing leaves the machine, the model sees what was written."""
    for wishes in ({}, {"tandem": {"privacy": "replaced", "mode": "device"}}):
        answer = await openai.chat.completions.create(model="null", messages=asked(), extra_body=wishes)
        assert answer.choices[0].message.content == SAYS
        assert (answer.model_extra or {})["tandem"]["why"] is None
    assert all(ASKED in prompt for prompt in prompts(backend))


async def test_the_servers_setting(openai: AsyncOpenAI, backend: NullBackend) -> None:
    backend.api = ApiSettings(privacy="replaced")
    await openai.chat.completions.create(model="null", messages=asked())
    await openai.chat.completions.create(
        model="null", messages=asked(), extra_body={"tandem": {"privacy": "as_is"}}
    )
    hidden, shown = prompts(backend)
    assert SEEN in hidden
    assert ASKED in shown


async def test_a_text_with_echo_and_stop(openai: AsyncOpenAI, backend: NullBackend) -> None:
    answer = await openai.completions.create(
        model="null", prompt=ASKED, echo=True, stop="anna@example.org", extra_body=REPLACED
    )
    assert answer.choices[0].text == ASKED + "Dear Anna, "
    assert backend.jobs[0].sampling.stop == ("<EMAIL_1>",)


async def test_tools(openai: AsyncOpenAI, backend: NullBackend) -> None:
    """Calls have what was meant; descriptions, schemas and earlier calls are hidden as the messages are."""
    says = '<tool_call>\n{"name": "mail", "arguments": {"to": "<EMAIL_1>"}}\n</tool_call>'
    backend.says = [*TOKENIZER.encode(says), backend.says[-1]]
    tool: Any = {
        "type": "function",
        "function": {
            "name": "mail",
            "description": "Writes for Anna Svensson",
            "parameters": {"type": "object", "properties": {"to": {"enum": ["anna@example.org"]}}},
        },
    }
    answer = await openai.chat.completions.create(
        model="null", messages=asked(), tools=[tool], extra_body=REPLACED
    )
    assert answer.choices[0].message.tool_calls
    assert answer.choices[0].message.tool_calls[0].function.arguments == '{"to": "anna@example.org"}'
    assert "anna" not in prompts(backend)[0].lower()


async def test_a_conversation_that_is_kept(http: httpx.AsyncClient, backend: NullBackend) -> None:
    """The server of this API keeps what was written, and the next turn has the same stand-ins."""
    form = {"model": "null", "input": ASKED, **REPLACED}
    first = (await http.post("/v1/responses", json=form)).json()
    assert first["output"][0]["content"][0]["text"] == MEANT
    assert first["tandem"]["why"]["replaced"] == HIDDEN
    more = form | {"input": "And Bob Miller?", "previous_response_id": first["id"]}
    assert (await http.post("/v1/responses", json=more)).json()["tandem"]["why"]["replaced"]["name"] == 4
    assert SEEN in prompts(backend)[1]
    assert "And <NAME_4> <NAME_5>?" in prompts(backend)[1]  # <NAME_3> is the model's own


@pytest.mark.parametrize("field", [{"logprobs": True}, {"prompt_logprobs": 1}, {"return_token_ids": True}])
async def test_what_shows_the_text_with_stand_ins_is_refused(
    openai: AsyncOpenAI, field: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError, match="tandem.privacy"):
        await openai.chat.completions.create(model="null", messages=asked(), extra_body=REPLACED | field)


async def test_a_prompt_of_tokens_is_refused(openai: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match="tandem.privacy"):
        await openai.completions.create(model="null", prompt=[1, 2], extra_body=REPLACED)
