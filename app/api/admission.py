"""From a request to jobs: the model, the prompt in tokens, and whether it all fits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from app.api.backend import Backend, ModelCard
from app.api.choice import Choice
from app.api.errors import (
    body_too_large,
    body_too_slow,
    client_gone,
    context_overflow,
    model_not_found,
    paced_for_nobody,
)
from app.api.schema import ChatRequest, CompletionRequest
from deployments.modes import MODES
from deployments.request.job import Job, UnknownMode
from engine.tokenizer import Tokenizer
from engine.validation import check_ids

T = TypeVar("T")

LONG_TEXT = 20_000
"""Characters from which on a prompt is encoded beside the event loop rather than on it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that can be run: a job and a choice for each answer. prompt_tokens: each prompt once."""

    model: str
    tokenizer: Tokenizer
    jobs: list[Job]
    choices: list[Choice]
    prompt_tokens: int


async def read_body(request: Request, limit: int, within_s: float) -> bytes:
    """The whole body. Raises ApiError: as soon as it exceeds `limit` bytes, when it takes longer than `within_s`
    seconds, or the client leaves."""
    if int(request.headers.get("content-length", 0)) > limit:
        raise body_too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise body_too_large(limit)
    except TimeoutError:
        raise body_too_slow(within_s) from None
    except ClientDisconnect:
        raise client_gone() from None
    return bytes(body)


async def admit(request: ChatRequest | CompletionRequest, backend: Backend, account: str = "") -> Admitted:
    """account: who pays. Raises ApiError (no such model, no room in the context), InvalidRequest, UnknownMode."""
    if request.tandem.mode is not None and request.tandem.mode not in MODES:
        raise UnknownMode(f"mode {request.tandem.mode!r} is not served here; there is {', '.join(MODES)}")
    rate = _reader_rate(request, backend)
    card = _card(request.model, backend)
    tokenizer = backend.tokenizer(card.id)
    jobs, choices = [], []
    prompts = await _prompts(request, tokenizer)
    for text, prompt in prompts:
        wanted, room = request.wanted_tokens(), card.context - len(prompt)
        if room < (wanted or 1):
            raise context_overflow(card.context, len(prompt), wanted, request.prompt_field)
        sampling = msgspec.structs.replace(request.sampling(room), reader_rate=rate)
        sampling.check()
        for i in range(request.n):
            jobs.append(
                Job(
                    id=secrets.randbits(63),
                    prompt=prompt,
                    sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + i) % 2**63),
                    mode=request.tandem.mode,
                    device=request.tandem.named,
                    window=request.tandem.window,
                    account=account,
                    budget=request.tandem.budget,
                    exchange_rate=request.tandem.exchange_rate,
                )
            )
            choice = Choice(tokenizer, sampling.stop, request.tandem.mode, rate)
            if isinstance(request, CompletionRequest) and request.echo:
                choice.prepend(text)
            choices.append(choice)
    return Admitted(card.id, tokenizer, jobs, choices, sum(len(prompt) for _, prompt in prompts))


def _reader_rate(request: ChatRequest | CompletionRequest, backend: Backend) -> float:
    """Tokens/s; 0: nobody reads along. A chat is read by somebody; a completion may be for a program."""
    rate = request.tandem.reader_rate
    if rate is None:
        rate = backend.default_reader_rate if isinstance(request, ChatRequest) else 0.0
    if request.tandem.paced and not rate:
        raise paced_for_nobody()
    return rate


def _card(model: str, backend: Backend) -> ModelCard:
    cards = {card.id: card for card in backend.models()}
    if model not in cards:
        raise model_not_found(model, list(cards))
    return cards[model]


async def _prompts(
    request: ChatRequest | CompletionRequest, tokenizer: Tokenizer
) -> list[tuple[str, tuple[int, ...]]]:
    """Each prompt as (text, tokens); of tokens the text only where it will be echoed."""
    if isinstance(request, ChatRequest):
        length = sum(len(m.content) for m in request.messages)
        return [("", tuple(await _beside(length, tokenizer.render_chat, request.chat())))]
    prompts = []
    for prompt in request.prompt:
        if isinstance(prompt, str):
            prompts.append((prompt, tuple(await _beside(len(prompt), tokenizer.encode, prompt))))
        else:
            check_ids(prompt, tokenizer.vocab_size)
            prompts.append((tokenizer.decode(prompt) if request.echo else "", tuple(prompt)))
    return prompts


async def _beside(length: int, encode: Callable[[T], list[int]], text: T) -> list[int]:
    return encode(text) if length < LONG_TEXT else await asyncio.to_thread(encode, text)
