"""Tokens of texts and chats, and texts of tokens, as clients of vLLM ask for them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from tests.app.api.null_backend import TOKENIZER, NullBackend

HELLO = [{"role": "user", "content": "Hello?"}]


async def test_a_text(http: httpx.AsyncClient) -> None:
    reply = await http.post("/tokenize", json={"model": "null", "prompt": "né"})
    tokens = TOKENIZER.encode("né")
    assert reply.json() == {"count": 3, "max_model_len": 512, "tokens": tokens, "token_strs": None}


async def test_a_chat_has_the_tokens_of_the_request(
    http: httpx.AsyncClient, openai: AsyncOpenAI, backend: NullBackend
) -> None:
    reply = await http.post("/tokenize", json={"messages": HELLO, "return_token_strs": True})
    found = reply.json()
    await openai.chat.completions.create(model="null", messages=HELLO, max_tokens=1)
    assert tuple(found["tokens"]) == backend.jobs[0].prompt
    assert found["token_strs"][:2] == ["<bos>", "<|q|>"]


async def test_a_long_text(http: httpx.AsyncClient) -> None:
    found = (await http.post("/tokenize", json={"prompt": "x" * 30_000})).json()
    assert found["count"] == len(found["tokens"]) == 30_000


async def test_special_tokens_of_the_models_own(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOKENIZER, "_prepended", [TOKENIZER.bos])
    for given, expected in ((None, [TOKENIZER.bos]), (True, [TOKENIZER.bos]), (False, [])):
        found = (await http.post("/tokenize", json={"prompt": "", "add_special_tokens": given})).json()
        assert found["tokens"] == expected


async def test_back_again(http: httpx.AsyncClient) -> None:
    """Special tokens come back, too, and half a character does no harm."""
    tokens = TOKENIZER.render_chat(HELLO)
    assert (await http.post("/detokenize", json={"tokens": tokens})).json() == {
        "prompt": "<bos><|q|> Hello?<|a|>"
    }
    half = TOKENIZER.encode("né")[:-1]
    assert (await http.post("/detokenize", json={"tokens": half})).json() == {"prompt": "n\ufffd"}
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/tokenize", {}, (400, "invalid_value", None)),
        ("/tokenize", {"prompt": "x", "messages": HELLO}, (400, "invalid_value", None)),
        ("/tokenize", {"messages": HELLO, "add_special_tokens": True}, (400, "invalid_value", None)),
        (
            "/tokenize",
            {"prompt": "x", "continue_final_message": True},
            (400, "unsupported_parameter", "continue_final_message"),
        ),
        ("/tokenize", {"prompt": "x", "model": "other"}, (404, "model_not_found", "model")),
        ("/detokenize", {"tokens": [-1]}, (400, "invalid_value", "tokens[0]")),
        ("/detokenize", {"tokens": [100_000]}, (400, "invalid_request", None)),
        ("/detokenize", {"prompt": "x"}, (400, "missing_required_parameter", "tokens")),
    ],
)
async def test_refusals(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], expected: tuple[object, ...]
) -> None:
    reply = await http.post(path, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == expected


async def test_embeddings_are_refused_with_the_reason(openai: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError, match="makes no embeddings") as refused:
        await openai.embeddings.create(model="null", input="x")
    assert refused.value.code == "unsupported_endpoint"
