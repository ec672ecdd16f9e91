"""POST /tokenize and /detokenize, as vLLM has them: the tokens of a text or a chat, and the text of tokens."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandem.app.api.completions.admission import LONG
from tandem.app.api.completions.schema import Message, TokenId
from tandem.app.api.http.auth import authenticate
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.app.api.http.forms import StrictForm
from tandem.app.api.models.cards import model_card
from tandem.deployments.docstrings import describe
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.validation import check_ids


class TokenizeForm(StrictForm):
    """A text or a chat, whose tokens are those of the same prompt in a completion.

    model: may be left out where there is one model.
    prompt: a text; not with `messages`.
    messages: a chat; its prompt ends where the answer begins.
    chat_template_kwargs: variables of the chat template.
    add_special_tokens: whether a text begins with the model's own special tokens, such as bos.
    return_token_strs: whether to return each token's text, too.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] = Field([], min_length=1)
    chat_template_kwargs: dict[str, Any] = Field({})
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeForm:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("either prompt or messages is needed")
        if self.messages and self.add_special_tokens:
            raise ValueError("add_special_tokens is for a prompt: a chat template writes its own")
        return self

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """Return the tokens. Raise InvalidRequest for a chat that the model's template refuses."""
        if self.prompt is not None:
            return tokenizer.encode(self.prompt, self.add_special_tokens is not False)
        chat = [message.for_template() for message in self.messages]
        return tokenizer.render_chat(chat, self.chat_template_kwargs)

    @property
    def characters(self) -> int:
        """Approximate length of what is encoded."""
        return len(self.prompt or "") + sum(message.characters for message in self.messages)


class DetokenizeForm(StrictForm):
    """Tokens of a model.

    model: may be left out where there is one model.
    """

    model: str | None = None
    tokens: list[TokenId]


class Tokenized(BaseModel):
    """Tokens of a prompt.

    count: number of tokens.
    max_model_len: the most tokens of prompt and output together.
    token_strs: each token's text; null if not asked for.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    """A text.

    prompt: the tokens' text, special ones by their names.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    prompt: str


def add_tokenizer(api: FastAPI, backend: ServingBackend) -> None:
    """Add the endpoints."""

    @api.post("/tokenize", openapi_extra=described(TokenizeForm))
    async def tokenize(request: Request) -> Tokenized:
        await authenticate(request, backend)
        form = await body_of(request, TokenizeForm, backend.api)
        card = model_card(form.model or backend.models()[0].id, backend)
        tokenizer = backend.tokenizer(card.id)
        if form.characters < LONG:
            tokens = form.encoded(tokenizer)
        else:
            tokens = await asyncio.to_thread(form.encoded, tokenizer)
        strings = [tokenizer.token_text(token) for token in tokens] if form.return_token_strs else None
        return Tokenized(count=len(tokens), max_model_len=card.context, tokens=tokens, token_strs=strings)

    @api.post("/detokenize", openapi_extra=described(DetokenizeForm))
    async def detokenize(request: Request) -> Detokenized:
        await authenticate(request, backend)
        form = await body_of(request, DetokenizeForm, backend.api)
        tokenizer = backend.tokenizer(model_card(form.model or backend.models()[0].id, backend).id)
        check_ids(form.tokens, tokenizer.vocab_size)
        text = b"".join(map(tokenizer.token_bytes, form.tokens)).decode("utf-8", "replace")
        return Detokenized(prompt=text)
