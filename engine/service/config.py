"""Settings of a service as an engine."""

from __future__ import annotations

import os
from typing import Any, Literal, Self, get_args

from httpx import URL, InvalidURL
from pydantic import Field, field_validator, model_validator

from tandem.engine.base import Continuation
from tandem.engine.config import Priced, Strict

Route = Literal["completions", "chat"]
Extension = Literal["top_k", "min_p", "min_tokens", "repetition_penalty", "ignore_eos"]
Prefix = Literal["assistant", "continue_final_message", "prefix"]


class RateLimits(Strict):
    """Limits of requests to the service that this side keeps.

    requests_per_minute: most requests; null for no limit.
    tokens_per_minute: most tokens of prompts and answers; null for no limit.
    wait_s: longest wait for these limits, and for what the service itself asks with Retry-After, before a request is
        refused; then another endpoint may answer it.
    """

    requests_per_minute: float | None = Field(None, gt=0)
    tokens_per_minute: float | None = Field(None, gt=0)
    wait_s: float = Field(5.0, ge=0, le=60)


class ServiceConfig(Priced):
    """Address and limits of a service; its prices take the place of its model's, too.

    base_url: address of its API, up to and with `/v1`.
    model: the model's name at the service.
    tokenizer: model whose tokenizer counts tokens on this side, by name, folder or GGUF file; best the service's own.
    api_key_env: environment variable with the key; null: the service asks for none.
    route: "completions", which continues any text exactly; or "chat", which takes only chats of the tokenizer's
        template.
    prefix: how a chat's half answer is continued: as the last message, of the assistant ("assistant": llama.cpp), with
        vLLM's `continue_final_message`, or with `prefix` in the message ("prefix": DeepSeek, Mistral); null: not at
        all, so that no answer is handed over to the service.
    context: most tokens of prompt and output together.
    max_sessions: most requests at once; further ones are refused.
    rate_limit: limits that this side keeps.
    connect_s: timeout of a connection.
    first_s: timeout of the first token.
    step_s: timeout of every later one.
    extensions: the service's names for what OpenAI's API lacks (top_k, min_p, min_tokens, repetition_penalty,
        ignore_eos); a request that needs one that is missing here is refused.
    structured: whether it takes `response_format` with a JSON schema or for any JSON object; without, a request for
        such a form is refused. "json_schema": as a field of that name (llama.cpp's completions). Its text is checked as
        it comes.
    options: further fields of every request to the service, by its names; null leaves out a field.
    """

    base_url: str
    model: str = Field(min_length=1)
    tokenizer: str
    api_key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    route: Route = "completions"
    prefix: Prefix | None = None
    context: int = Field(8192, ge=16)
    max_sessions: int = Field(64, ge=1)
    rate_limit: RateLimits = RateLimits()
    connect_s: float = Field(5.0, gt=0, allow_inf_nan=False)
    first_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    step_s: float = Field(30.0, gt=0, allow_inf_nan=False)
    extensions: dict[str, str] = Field({name: name for name in get_args(Extension)})
    structured: bool | Literal["json_schema"] = False
    options: dict[str, Any] = Field({})

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, base_url: str) -> str:
        try:
            url = URL(base_url)
        except InvalidURL as error:
            raise ValueError(f"{error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("an address looks like https://api.example.com/v1")
        if url.userinfo:
            raise ValueError("no password belongs into an address: name a variable under api_key_env")
        return base_url.rstrip("/")

    @field_validator("extensions")
    @classmethod
    def _are_known(cls, extensions: dict[str, str]) -> dict[str, str]:
        known = get_args(Extension)
        if unknown := extensions.keys() - set(known):
            raise ValueError(f"{', '.join(sorted(unknown))}: there are {', '.join(known)}")
        return extensions

    @model_validator(mode="after")
    def _prefix_fits_the_route(self) -> Self:
        if self.prefix is not None and self.route != "chat":
            raise ValueError("prefix is for route: chat; completions continue any text")
        return self

    @property
    def places(self) -> int:
        """Sessions that it takes at once."""
        return self.max_sessions

    @property
    def batch_limit(self) -> int:
        """Most sessions in a step; the service's own limit is unknown."""
        return self.max_sessions

    @property
    def continuation(self) -> Continuation:
        """Return how the service's sessions go on after an output, see EngineInfo."""
        return "anew" if self.route == "completions" or self.prefix is not None else "none"

    def key(self) -> str | None:
        """Return the service's key; None if it asks for none. Raise ValueError without the variable."""
        if self.api_key_env is None:
            return None
        if not (key := os.environ.get(self.api_key_env, "").strip()):
            raise ValueError(f"api_key_env: the environment variable {self.api_key_env} is not set")
        return key
