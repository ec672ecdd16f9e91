"""Responses to admitted requests, whole or streamed; they stop when the client leaves."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from abc import abstractmethod
from functools import partial
from typing import Any

from fastapi import Response
from starlette.types import Message, Receive, Scope, Send

from tandem.app.api.completions.admission import Admitted, Begun
from tandem.app.api.completions.choice import ChoicePiece, Run, ScoredToken
from tandem.app.api.completions.gather import ChunkCoalescer, Gather
from tandem.app.api.completions.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from tandem.app.api.completions.objects import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    TextChoice,
    Usage,
    joined_calls,
    tandem,
    usage,
)
from tandem.app.api.completions.request_log import Record
from tandem.app.api.completions.schema import ChatRequest, CompletionRequest
from tandem.app.api.completions.sse import DONE, EventWriter, error_event
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import DISCONNECTED, ApiError, api_error
from tandem.app.api.http.kept_streams import EVENT_STREAM
from tandem.app.api.http.rate_limit_headers import Headers, rate_limit_headers
from tandem.app.api.http.sending import PIECE, Sending
from tandem.deployments.access.kept.streams import Said

_HTTP: Scope = {"type": "http"}


class AnswerResponse(Response):
    """A response that runs the jobs while it is being sent; when it ends, for whatever reason, all jobs end.

    The request's place at the gate is free when no job generates any more, whether or not the client has read it all.
    """

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        admitted: Admitted,
        backend: ServingBackend,
        coalescer: ChunkCoalescer,
        record: Record,
    ) -> None:
        super().__init__()
        self.request, self.admitted, self._record = request, admitted, record
        self.chat = isinstance(request, ChatRequest)
        begun = admitted.begun
        self.id, self.created = (self.new_id(), int(time.time())) if begun is None else begun[:2]
        record.begin(self.id, admitted)
        resumable = request.tandem.resumable
        self.said = [Said() for _ in admitted.jobs] if resumable else []  # by choice, what was sent
        self._enter = partial(backend.enter, admitted.caller, admitted.entry, admitted.jobs)
        self._booked = backend.booked
        leave = partial(backend.leave, admitted.caller, admitted.entry)
        self._gather = Gather(
            record.traced(backend.run),
            admitted.jobs,
            admitted.choices,
            coalescer,
            request.tandem.paced,
            leave,
        )
        self.limits: Headers = []

    def new_id(self) -> str:
        """Return an id for the response."""
        return ("chatcmpl-" if self.chat else "cmpl-") + secrets.token_hex(12)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work(send: Send) -> None:
            await self._work(scope, receive, send)

        await Sending(receive, send).run(work, partial(self._record.end, DISCONNECTED))

    async def outliving(self, send: Send) -> None:
        """Run the jobs without a client whose leaving would end them."""
        try:
            await self._work(_HTTP, _silence, send)
        except asyncio.CancelledError:
            self._record.end(DISCONNECTED)
            raise

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except Exception as failure:
            error = api_error(failure)
            await self.send_error(error, scope, receive, send)
            self._record.end(error.status, error.code)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.admitted.begun is not None:
            await self._repeat(self.admitted.begun)
        passage = await self._enter()
        async with self._gather as gather:
            self._record.passed_gate()
            self.limits = rate_limit_headers(passage)
            async for batch in gather.batches():
                for index, piece in batch if self.said else ():
                    self.said[index].add(piece.ids, piece.origins, piece.finish)
                await self.take(batch, send)
                self._record.sent_text()
            await gather.closed()
        await self._booked()  # the client is told of the end when nothing can lose the bill any more
        await self.end(scope, receive, send)
        self._record.end(200)

    async def _repeat(self, begun: Begun) -> None:
        """Take in what the client has had from another replica, without sending it."""
        pairs = enumerate(zip(self.admitted.choices, begun.said, strict=True))
        await self.take([(i, piece) for i, (choice, had) in pairs if (piece := choice.begin(had))], _nowhere)
        for said, had in zip(self.said, begun.said, strict=True):
            said.add(had.ids, had.origins, had.finish)

    def used(self) -> int:
        """Return the output tokens of all choices."""
        return sum(choice.tokens for choice in self.admitted.choices)

    def reasoned(self) -> int:
        """Return those of them with which the model thinks."""
        return sum(choice.reasoning_tokens for choice in self.admitted.choices)

    def usage(self) -> Usage:
        """Return OpenAI's usage object, as of now."""
        return usage(self.admitted.prompt_tokens, self.used(), self.reasoned())

    @property
    def scored(self) -> bool:
        return self.request.wanted_logprobs() >= 0

    @abstractmethod
    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        """Take the next (choice, piece) pairs."""

    @abstractmethod
    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the rest, once all choices are finished."""

    async def send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        await error.response()(scope, receive, send)


class StreamedAnswer(AnswerResponse):
    """Server-sent events. The status waits for the first text, so that a refusal still gets its own status."""

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        admitted: Admitted,
        backend: ServingBackend,
        coalescer: ChunkCoalescer,
        record: Record,
    ) -> None:
        super().__init__(request, admitted, backend, coalescer, record)
        self._writer = EventWriter(
            self.chat,
            {"id": self.id, "created": self.created, "model": admitted.model},
            admitted.tokenizer,
            self.scored,
            request.streaming,
            [job.prompt for job in admitted.jobs] if request.return_token_ids else None,
            admitted.replaced,
        )
        self._begun = False

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        if not self._begun:
            self._begun = True
            headers = [*EVENT_STREAM, *self.limits]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        used = self.usage() if self._writer.counted else None
        events = b"".join([self._writer.chunk(index, piece, used) for index, piece in batch])
        await send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        total = self._writer.usage(self.usage())
        last = total + DONE if self.request.streaming.include_usage else DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._begun:
            return await super().send_error(error, scope, receive, send)
        return await send({"type": "http.response.body", "body": error_event(error), "more_body": False})


class WholeAnswer(AnswerResponse):
    """One JSON object, sent when all choices are finished."""

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        admitted: Admitted,
        backend: ServingBackend,
        coalescer: ChunkCoalescer,
        record: Record,
    ) -> None:
        super().__init__(request, admitted, backend, coalescer, record)
        self._pieces: list[list[ChoicePiece]] = [[] for _ in admitted.choices]

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        for index, piece in batch:
            self._pieces[index].append(piece)

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(self._reply().model_dump_json().encode(), self.limits, send)

    def _reply(self) -> ChatCompletion | Completion:
        chosen = self._best() if self.request.answers > self.request.n else range(len(self._pieces))
        runs: list[Run] = [run for number in chosen for piece in self._pieces[number] for run in piece.runs]
        costs = [piece.stats for pieces in self._pieces for piece in pieces if piece.stats]
        readings = [piece.reading for pieces in self._pieces for piece in pieces if piece.reading]
        common: dict[str, Any] = {
            "id": self.id,
            "created": self.created,
            "model": self.admitted.model,
            "usage": self.usage(),
            "tandem": tandem(runs, costs, readings, self.admitted.replaced),
        }
        if self.chat:
            common |= self._of_prompt(0)
            return ChatCompletion(choices=[self._chat_choice(i) for i in chosen], **common)
        return Completion(choices=[self._text_choice(*pair) for pair in enumerate(chosen)], **common)

    def _best(self) -> list[int]:
        """Return the n answers to each prompt whose tokens are the likeliest on average, the best first."""
        request, best = self.request, []
        for first in range(0, len(self._pieces), request.answers):
            numbers = range(first, first + request.answers)
            best += sorted(numbers, key=self._likelihood, reverse=True)[: request.n]
        return best

    def _likelihood(self, number: int) -> float:
        """Return the mean log-probability of an answer's own tokens; one without any is the least likely."""
        scored = [token for piece in self._pieces[number] for token in piece.scored]
        echoed = len(self.admitted.jobs[number].prompt) if self.request.echoes_scores else 0
        own = [s.scores.logprob for s in scored[echoed:] if s.scores]
        return sum(own) / len(own) if own else -math.inf

    def _of_prompt(self, number: int) -> dict[str, Any]:
        """Return what the client asked for of an answer's prompt: its tokens, and their log-probabilities."""
        prompt, most = self.admitted.jobs[number].prompt, self.request.prompt_logprobs
        scores = self.admitted.choices[number].prompt_scores
        return {
            "prompt_token_ids": list(prompt) if self.request.return_token_ids else None,
            "prompt_logprobs": None
            if most is None
            else prompt_logprobs(prompt, scores, most, self.admitted.tokenizer),
        }

    def _ids(self, number: int) -> list[int] | None:
        """Return an answer's tokens if the client asked for them."""
        if not self.request.return_token_ids:
            return None
        return [token for piece in self._pieces[number] for token in piece.ids]

    def _chat_choice(self, index: int) -> ChatChoice:
        text, scored, finish = self._joined(index)
        logprobs = chat_logprobs(scored, self.admitted.tokenizer) if self.scored else None
        calls = joined_calls(call for piece in self._pieces[index] for call in piece.calls)
        reasoning = "".join(piece.reasoning for piece in self._pieces[index])
        message = AssistantMessage(
            content=text if text or not calls else None,
            reasoning_content=reasoning or None,
            tool_calls=calls or None,
        )
        return ChatChoice(
            index=index,
            message=message,
            logprobs=logprobs,
            finish_reason=finish,
            token_ids=self._ids(index),
        )

    def _text_choice(self, index: int, number: int) -> TextChoice:
        """Return choice `index`, which is answer `number`."""
        text, scored, finish = self._joined(number)
        logprobs = completion_logprobs(scored, self.admitted.tokenizer) if self.scored else None
        return TextChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=finish,
            token_ids=self._ids(number),
            **self._of_prompt(number),
        )

    def _joined(self, index: int) -> tuple[str, list[ScoredToken], str]:
        """Return a choice's text, its tokens with log-probabilities, and why it ended."""
        pieces = self._pieces[index]
        scored = [token for piece in pieces for token in piece.scored]
        for token in scored:
            if token.scores is not None:  # the prompt's may have more
                del token.scores.top[max(0, self.request.wanted_logprobs()) :]
        finish = pieces[-1].finish
        assert finish, "a choice's last piece has its finish"
        return "".join(piece.text for piece in pieces), scored, finish


async def send_json(reply: bytes, limits: Headers, send: Send) -> None:
    """Send a whole answer. limits: headers about rate limits."""
    headers = Response(reply, media_type="application/json").raw_headers + limits
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for begin in range(0, len(reply), PIECE):
        end = begin + PIECE
        await send({"type": "http.response.body", "body": reply[begin:end], "more_body": end < len(reply)})


async def _nowhere(message: Message) -> None:
    """Send nothing."""


async def _silence() -> Message:
    """Receive nothing."""
    await asyncio.Event().wait()
    return {}
