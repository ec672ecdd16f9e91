"""Prompts for filling in."""

from __future__ import annotations

import httpx
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from tandem.app.api.completions.filling import MARKS, filled
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.text.test_tokenizer import CONFIG, definition


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("special", [False, True])
def test_the_vocabularys_tokens_for_filling_in(marks: tuple[str, ...], special: bool) -> None:
    rust = RustTokenizer.from_str(definition())
    tokens = [AddedToken(mark, special=special, normalized=False) for mark in marks]
    (rust.add_special_tokens if special else rust.add_tokens)(tokens)
    tokenizer = Tokenizer(rust.to_str(), CONFIG)
    text = filled("def f(", "): pass", tokenizer)
    assert text == f"{marks[0]}def f({marks[1]}): pass{marks[2]}"
    named = [tokenizer.token_text(token) for token in tokenizer.encode(text)]
    assert [name for name in named if "fim" in name] == list(marks)


@pytest.mark.parametrize(
    ("extra", "code", "param"),
    [({}, "unsupported_parameter", "suffix"), ({"echo": True}, "invalid_value", None)],
)
async def test_a_suffix_that_cannot_be(
    http: httpx.AsyncClient, extra: dict[str, bool], code: str, param: str | None
) -> None:
    reply = await http.post("/v1/completions", json={"model": "null", "prompt": "a", "suffix": "b"} | extra)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
