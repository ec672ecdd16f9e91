"""Fields that are not implemented: the documentation lists them, and requests with them fare as it says."""

from __future__ import annotations

import json

import httpx
import pytest

from tandem.app.api.completions.schema import ChatRequest, CompletionRequest
from tandem.app.api.http.fields import ACCEPTED, DOCS, REFUSED, updated

CHAT = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}
TEXT = {"model": "null", "prompt": "x", "max_tokens": 1}
FORMS = {"/v1/chat/completions": (CHAT, ChatRequest), "/v1/completions": (TEXT, CompletionRequest)}
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
    ("field", "value"), [("store", True), ("store", 0), ("priority", False), ("unheard_of", None)]
)
async def test_values_that_are_not_the_neutral_ones(
    http: httpx.AsyncClient, field: str, value: object
) -> None:
    """A number is no truth value; null is like no value."""
    reply = await http.post("/v1/chat/completions", json=CHAT | {field: value})
    assert reply.status_code == (200 if value is None else 400)
