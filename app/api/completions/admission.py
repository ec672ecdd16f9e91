"""Makes jobs of a request: finds the model, tokenizes the prompts, and checks that they fit."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec

from tandem.app.api.completions.choice import Choice
from tandem.app.api.completions.filling import filled
from tandem.app.api.completions.private import private
from tandem.app.api.completions.schema import ChatRequest, CompletionRequest
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import (
    context_overflow,
    no_such_token,
    not_allowed,
    reader_rate_missing,
    too_many_answers,
    too_many_min_tokens,
)
from tandem.app.api.models.cards import model_card, served_modes
from tandem.app.api.structured.forms import check_grammar
from tandem.app.api.tools.answer_reader import (
    BEGIN,
    END,
    AnswerReader,
    Thoughts,
    begins_thinking,
    ends_thinking,
    may_think,
)
from tandem.app.api.tools.spelling import MarkedSpelling
from tandem.app.api.tools.use import ToolUse, tool_use
from tandem.deployments.access.kept.streams import Said
from tandem.deployments.access.keys import Caller
from tandem.deployments.admission.entry import Entry, Room
from tandem.deployments.modes import MODES
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.sections import options_of
from tandem.deployments.request.job import Job, UnknownMode
from tandem.deployments.request.tokenlog import TokenLog
from tandem.engine.base import Grammar, Sampling
from tandem.engine.privacy.stand_ins import Restorer
from tandem.engine.sketch.base import Question
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.validation import check_ids
from tandem.policies.routing.collaboration import ANY_DEVICE

LONG = 2_000
"""Characters from which a request's prompts are encoded in a thread rather than on the event loop."""


class Begun(NamedTuple):
    """Beginning of a resumable answer, which another replica of the API has made.

    id, created: of the answer, seconds since the epoch.
    events: number of its events.
    said: by choice, what is in them.
    """

    id: str
    created: int
    events: int
    said: Sequence[Said]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that can be run: a job and a choice for each answer.

    model: its name, as the client has called it.
    prompt_tokens: tokens of all prompts, each counted once whatever `n`.
    caller: who pays.
    begun: what another replica of the API has said of its answer; None: nothing.
    replaced: number of private parts that stand-ins stand for, by kind; None where its privacy does not ask for them.
    """

    model: str
    tokenizer: Tokenizer
    jobs: list[Job]
    choices: list[Choice]
    prompt_tokens: int
    caller: Caller
    begun: Begun | None = None
    replaced: Mapping[str, int] | None = None

    @property
    def entry(self) -> Entry:
        """Entry for the admission controller."""
        rooms = [Room(job.id, len(job.prompt), job.sampling.max_tokens) for job in self.jobs]
        first = self.jobs[0]
        return Entry.of(self.caller, rooms, self.prompt_tokens, first.model, first.priority)


async def admit(
    request: ChatRequest | CompletionRequest,
    backend: ServingBackend,
    caller: Caller,
    begun: Begun | None = None,
) -> Admitted:
    """Make the jobs of a request, which `caller` pays for; they go on behind what its answer has begun with.

    Raises ApiError (no such model, no room in the context, not allowed), InvalidRequest, UnknownMode, and what
    `ServingBackend.check` raises.
    """
    wishes = _wishes(request, caller, backend)
    rate = _reader_rate(request, backend)
    card = model_card(request.model, backend)
    tokenizer = backend.tokenizer(card.id)
    request, stand_ins = await private(request, backend)
    use = _tool_use(request, tokenizer)
    grammar = await _grammar(request, use)
    jobs, choices = [], []
    prompts = await _prompts(request, use, tokenizer, backend.api.sessions)
    most = _most_tokens(caller, prompts, request.answers)
    for text, prompt in prompts:
        question = _question(request, text, prompt)
        wanted, room = request.wanted_tokens(), card.context - len(prompt)
        if room < (wanted or 1):
            field = request.prompt_field if room < 1 else request.limit_field
            raise context_overflow(card.context, len(prompt), wanted, field)
        recommended = tokenizer.sampling if backend.api.generation_config else {}
        asked = request.sampling(min(room, most), recommended)
        ends = asked.stop_tokens if asked.ignore_eos else (*asked.stop_tokens, *tokenizer.further_ends)
        sampling = msgspec.structs.replace(
            asked,
            reader_rate=rate,
            stop_tokens=ends,
            grammar=grammar,
            adapter=card.id if card.parent is not None else "",
        )
        _check_sampling(sampling, tokenizer)
        thoughts = _thoughts(request, tokenizer, prompt)
        if grammar is not None and thoughts is not None:
            sampling = msgspec.structs.replace(sampling, grammar=thoughts.before(grammar))
        marks = (*(() if use is None else use.format.marks), *(() if thoughts is None else (BEGIN, END)))
        spelling = MarkedSpelling(tokenizer, marks) if marks else tokenizer
        for i in range(request.answers):
            seed = (sampling.seed + i) % 2**63
            jobs.append(
                replace(
                    wishes,
                    id=secrets.randbits(63),
                    prompt=prompt,
                    question=question,
                    model=card.parent or card.id,
                    sampling=msgspec.structs.replace(sampling, seed=seed),
                )
            )
            choice = Choice(
                spelling,
                sampling.stop,
                request.tandem.mode,
                rate,
                isinstance(request, ChatRequest),
                sampling.min_tokens,
            )
            choice.reader = _reader(use, thoughts)
            choice.restorer = None if stand_ins is None else Restorer(stand_ins)
            if isinstance(request, CompletionRequest) and request.echo:
                choice.prepend(text if stand_ins is None else stand_ins.show(text))
                if request.logprobs is not None:
                    choice.expect_scores(prompt)
            choices.append(choice)
    if begun is not None:
        jobs = [
            replace(job, log=TokenLog(said.ids, said.origins))
            for job, said in zip(jobs, begun.said, strict=True)
        ]
    read = sum(len(prompt) for _, prompt in prompts)
    replaced = None if stand_ins is None else stand_ins.counts
    return Admitted(request.model, tokenizer, jobs, choices, read, caller, begun, replaced)


def _most_tokens(caller: Caller, prompts: Sequence[tuple[str, Sequence[int]]], answers: int) -> int:
    """Return the tokens that each answer can have in a minute's limit, at least 1, where the client says no number."""
    if (limit := caller.tokens_per_minute) is None:
        return sys.maxsize
    rest = limit - sum(len(prompt) for _, prompt in prompts)
    return max(1, rest // (len(prompts) * answers))


def _check_sampling(sampling: Sampling, tokenizer: Tokenizer) -> None:
    """Raise ApiError or InvalidRequest for sampling that makes no sense for this model."""
    sampling.check()
    if sampling.min_tokens > sampling.max_tokens:
        raise too_many_min_tokens(sampling.min_tokens, sampling.max_tokens)
    for token, _ in sampling.logit_bias:
        if token >= tokenizer.vocab_size:
            raise no_such_token(token, tokenizer.vocab_size)


def _wishes(request: ChatRequest | CompletionRequest, caller: Caller, backend: ServingBackend) -> Job:
    """Return the job without its tokens: what the request asks for, within its caller's terms."""
    asked, terms = request.tandem, caller.terms
    mode = CloudMode.name if request.scored else asked.mode
    if mode is not None and mode not in MODES:
        raise UnknownMode(f"mode {mode!r} is not served here; there is {', '.join(served_modes(backend))}")
    if mode is not None and terms.modes is not None and mode not in terms.modes:
        raise not_allowed("mode", mode, terms.modes)
    if mode is not None:
        backend.check(mode)
    device = asked.named
    if terms.devices is not None and device is not None:
        named = (device,) if isinstance(device, str) else device
        if others := [name for name in named if name not in (*terms.devices, ANY_DEVICE)]:
            raise not_allowed("device", others[0], terms.devices)
    budget = terms.budget if asked.budget is None else asked.budget
    rate = terms.exchange_rate if asked.exchange_rate is None else asked.exchange_rate
    if caller.keyed:  # it spends its owner's money
        budget, rate = min(budget, terms.budget), min(rate, terms.exchange_rate)
    return Job(
        id=0,
        prompt=(),
        sampling=Sampling(),
        mode=mode,
        device=device,
        account=caller.account,
        budget=budget,
        exchange_rate=rate,
        modes=terms.modes,
        devices=terms.devices,
        scored=request.scored,
        options=options_of(asked),
        priority=request.priority,
        objective=terms.objective_of(None if asked.objective is None else asked.objective.objective()),
    )


def _tool_use(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> ToolUse | None:
    """Return the request's use of tools; None if it has none."""
    if not isinstance(request, ChatRequest):
        return None
    return tool_use(request.tools, request.tool_choice, request.parallel_tool_calls, tokenizer)


async def _grammar(request: ChatRequest | CompletionRequest, use: ToolUse | None) -> Grammar | None:
    """Return the answers' form; None for any. Raise ApiError for one that does not compile."""
    field, grammar = request.form() or ("", None)
    if use is not None:
        field, grammar = field or "tools", use.grammar(grammar)
    if grammar is not None:
        await check_grammar(grammar, field)
    return grammar


def _thoughts(
    request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, prompt: Sequence[int]
) -> Thoughts | None:
    """Return how the model may begin its answer with its thoughts; None if it does not think."""
    if not isinstance(request, ChatRequest) or not may_think(_template(request, tokenizer)):
        return None
    end = b"".join([tokenizer.token_bytes(token) for token in prompt[-16:]]).decode("utf-8", "replace")
    return None if ends_thinking(end) else Thoughts(begins_thinking(end))


def _template(request: ChatRequest, tokenizer: Tokenizer) -> str | None:
    """Return the chat template that the request's prompt is made with."""
    return tokenizer.tool_template if request.tools else tokenizer.chat_template


def _reader(use: ToolUse | None, thoughts: Thoughts | None) -> AnswerReader | None:
    """Return a reader of an answer that is more than text; None if it is that."""
    if use is None and thoughts is None:
        return None
    return AnswerReader(
        None if use is None else use.reader(), thoughts is not None, thoughts is not None and thoughts.begun
    )


def _question(request: ChatRequest | CompletionRequest, text: str, prompt: tuple[int, ...]) -> Question:
    """Return the question: a chat's last message, or the prompt."""
    if isinstance(request, CompletionRequest):
        return Question(prompt, text=text)
    chat = request.chat()
    return Question(prompt, chat, chat[-1]["content"])


def _reader_rate(request: ChatRequest | CompletionRequest, backend: ServingBackend) -> float:
    """Return the reader's tokens/s; 0 without a reader, as by default where an answer comes as a whole, and for
    completions, which are often for programs."""
    rate = request.tandem.reader_rate
    if rate is None:
        rate = backend.default_reader_rate if isinstance(request, ChatRequest) and request.stream else 0.0
    if request.tandem.paced and not rate:
        raise reader_rate_missing()
    return rate


async def _prompts(
    request: ChatRequest | CompletionRequest, use: ToolUse | None, tokenizer: Tokenizer, most: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return each prompt as (text, tokens); a prompt of tokens has its text only if it will be echoed.

    most: the most answers, over all prompts.
    """
    prompts: list[Any] = [_chat(request, use)] if isinstance(request, ChatRequest) else request.prompt
    if len(prompts) * request.answers > most:
        raise too_many_answers(most)

    def encoded(prompt: Any) -> tuple[str, tuple[int, ...]]:
        if isinstance(request, ChatRequest):
            variables = request.variables(_template(request, tokenizer)) | (
                use.variables() if use is not None else {}
            )
            return "", tuple(tokenizer.render_chat(prompt, variables))
        if isinstance(prompt, str):
            prompt = filled(prompt, request.suffix, tokenizer) if request.suffix else prompt
            return prompt, tuple(tokenizer.encode(prompt))
        check_ids(prompt, tokenizer.vocab_size)
        return (tokenizer.decode(prompt) if request.echo else ""), tuple(prompt)

    if _size(request) < LONG:
        return [encoded(prompt) for prompt in prompts]
    return await asyncio.to_thread(lambda: [encoded(prompt) for prompt in prompts])


def _chat(request: ChatRequest, use: ToolUse | None) -> list[dict[str, Any]]:
    """Return the messages for the chat template."""
    return request.chat() if use is None else use.chat(request.chat())


def _size(request: ChatRequest | CompletionRequest) -> int:
    """Return the characters, or tokens, of all its prompts."""
    if isinstance(request, ChatRequest):
        tools = sum(len(json.dumps(tool.function.parameters)) for tool in request.tools)
        return tools + sum(message.characters for message in request.messages)
    return len(request.suffix) + sum(len(prompt) for prompt in request.prompt)
