"""Fields that are not implemented: the documentation lists them, and requests with them fare as it says."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types import Completion, completion_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import BaseModel, TypeAdapter

from tandem.app.api.completions.schema import ChatRequest, CompletionRequest
from tandem.app.api.http.fields import ACCEPTED, DOCS, REFUSED, updated
from tandem.app.api.responses.form import ResponseForm
from tests.app.api.null_backend import NullBackend

CHAT = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}
TEXT = {"model": "null", "prompt": "x", "max_tokens": 1}
RESPONSE = {"model": "null", "input": "x", "max_output_tokens": 1}
FORMS: dict[str, tuple[dict[str, Any], type[BaseModel]]] = {
    "/v1/chat/completions": (CHAT, ChatRequest),
    "/v1/completions": (TEXT, CompletionRequest),
    "/v1/responses": (RESPONSE, ResponseForm),
}
OPENAI = {
    "/v1/chat/completions": (chat_create_params, ChatCompletion, ChatCompletionChunk),
    "/v1/completions": (completion_create_params, Completion, Completion),
    "/v1/responses": (response_create_params, Response, ResponseStreamEvent),
}
"""OpenAI's module of requests, its type of answers and of a stream's events, by path."""
MORE = {
    "/v1/chat/completions": {"n": 2, "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"n": 2, "logprobs": 2},
    "/v1/responses": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
}
"""Fields that make an answer longer."""
OTHER = "what nobody sends"


def test_the_documentation_has_the_same() -> None:
    """Otherwise: python -m tandem.app.api.http.fields."""
    page = DOCS.read_text(encoding="utf-8")
    assert "| `user` | keys tell users apart |" in page
    assert updated(page) == page


@pytest.mark.parametrize("path", FORMS)
async def test_what_is_accepted_has_no_effect(http: httpx.AsyncClient, path: str) -> None:
    body, form = FORMS[path]
    neutral = [(name, value) for name, (unless, _) in REFUSED.items() for value in unless]
    for name, value in [*((name, OTHER) for name in ACCEPTED), *neutral]:
        if name not in form.model_fields:
            reply = await http.post(path, json=body | {name: value})
            assert reply.status_code == 200, (name, value, reply.text)


@pytest.mark.parametrize("path", FORMS)
async def test_what_is_refused_is_refused_by_name_and_says_why(http: httpx.AsyncClient, path: str) -> None:
    body, form = FORMS[path]
    for name, (_, instead) in REFUSED.items():
        if name not in form.model_fields:
            reply = await http.post(path, json=body | {name: OTHER})
            assert reply.status_code == 400, name
            error = json.loads(reply.text)["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)
            assert error["message"].endswith(instead)


@pytest.mark.parametrize(
    ("field", "value"), [("store", True), ("store", 0), ("length_penalty", True), ("unheard_of", None)]
)
async def test_values_that_are_not_the_neutral_ones(
    http: httpx.AsyncClient, field: str, value: object
) -> None:
    """A number is no truth value; null is like no value."""
    reply = await http.post("/v1/chat/completions", json=CHAT | {field: value})
    assert reply.status_code == (200 if value is None else 400)


@pytest.mark.parametrize("path", FORMS)
async def test_a_priority_goes_with_the_request(
    http: httpx.AsyncClient, backend: NullBackend, path: str
) -> None:
    body, _ = FORMS[path]
    assert (await http.post(path, json=body | {"priority": -3})).status_code == 200
    assert backend.jobs[-1].priority == -3


@pytest.mark.parametrize("path", FORMS)
def test_every_field_of_openais_client_is_known(path: str) -> None:
    """Known is what is implemented, accepted without effect, or refused with a reason."""
    module, *_ = OPENAI[path]
    kinds = [kind for name, kind in vars(module).items() if "CreateParams" in name and isinstance(kind, type)]
    fields = set[str]().union(*(kind.__annotations__ for kind in kinds))
    assert {"model", "stream", "temperature"} <= fields
    assert fields - FORMS[path][1].model_fields.keys() - ACCEPTED.keys() - REFUSED.keys() == set()


@pytest.mark.parametrize("path", FORMS)
async def test_answers_are_of_the_types_of_openais_client(http: httpx.AsyncClient, path: str) -> None:
    _, answer, event = OPENAI[path]
    body = FORMS[path][0] | MORE[path]
    whole = await http.post(path, json=body)
    TypeAdapter(answer).validate_json(whole.text, strict=True)
    usage = {} if path == "/v1/responses" else {"stream_options": {"include_usage": True}}
    streamed = await http.post(path, json=body | {"stream": True, **usage})
    data = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")]
    found = [each for each in data if each != "[DONE]"]
    assert len(found) > 2
    for each in found:
        TypeAdapter(event).validate_json(each, strict=True)
