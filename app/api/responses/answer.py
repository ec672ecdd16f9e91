"""Responses to admitted requests of /v1/responses, whole or as a stream of OpenAI's events; kept before they end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from tandem.app.api.completions.admission import Admitted, Begun
from tandem.app.api.completions.answer import AnswerResponse, send_json
from tandem.app.api.completions.choice import ChoicePiece, ScoredToken
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.logprobs import chat_logprobs
from tandem.app.api.completions.objects import tandem
from tandem.app.api.completions.request_log import Record
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import ApiError
from tandem.app.api.http.kept_streams import EVENT_STREAM
from tandem.app.api.responses.form import ResponseChat, ResponseForm
from tandem.app.api.responses.items import Item, parsed, shown
from tandem.app.api.responses.objects import (
    IncompleteDetails,
    OutputDetails,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)
from tandem.app.api.responses.output import Event, Output
from tandem.deployments.request.assignment import Unavailable

logger = logging.getLogger("ray.serve")

_encode = msgspec.json.Encoder().encode


class Conversation(msgspec.Struct):
    """The part of a response that is kept.

    response: the object.
    items: the conversation before its output, without instructions.
    """

    response: msgspec.Raw
    items: list[dict[str, Any]]

    def whole(self) -> list[Item]:
        """Return the conversation, the output included."""
        output: list[dict[str, Any]] = msgspec.json.decode(self.response)["output"]
        return parsed([*self.items, *output])


class Asked(NamedTuple):
    """A request for a response.

    before: conversation of the previous response.
    account: whose response it is.
    """

    form: ResponseForm
    before: Sequence[Item]
    account: str

    def chat(self) -> ResponseChat:
        """Return the chat that it continues."""
        return self.form.chat(self.before)


class ResponseAnswer(AnswerResponse):
    """A response that is kept when it is complete, if the client has not said otherwise."""

    def __init__(
        self,
        asked: Asked,
        chat: ResponseChat,
        admitted: Admitted,
        backend: ServingBackend,
        coalescer: ChunkCoalescer,
        record: Record,
    ) -> None:
        super().__init__(chat, admitted, backend, coalescer, record)
        self._form, self._account, self._responses = asked.form, asked.account, backend.responses
        self._items = [shown(item) for item in (*asked.before, *asked.form.input)]
        self._output = Output(self._logprobs)
        self._pieces: list[ChoicePiece] = []

    def new_id(self) -> str:
        return "resp_" + secrets.token_hex(16)

    def _object(self, status: Status, **known: Any) -> ResponseObject:
        form, sampling = self._form, self.admitted.jobs[0].sampling
        return ResponseObject(
            id=self.id,
            created_at=self.created,
            status=status,
            instructions=form.instructions,
            max_output_tokens=form.max_output_tokens,
            metadata=form.metadata,
            model=self.admitted.model,
            previous_response_id=form.previous_response_id,
            parallel_tool_calls=form.parallel_tool_calls,
            store=form.store,
            temperature=sampling.temperature,
            text=form.text.shown(),
            tool_choice=form.tool_choice.shown(),
            tools=[tool.model_dump() for tool in form.tools],
            top_p=sampling.top_p,
            **known,
        )

    def _logprobs(self, scored: Sequence[ScoredToken]) -> list[dict[str, Any]]:
        scores: list[dict[str, Any]] = chat_logprobs(scored, self.admitted.tokenizer)["content"]
        return scores

    def _taken(self, batch: list[tuple[int, ChoicePiece]]) -> list[Event]:
        """Take in pieces; return their events."""
        events: list[Event] = []
        for _, piece in batch:
            self._pieces.append(piece)
            events += self._output.push(piece)
        return events

    async def _finished(self) -> tuple[list[Event], ResponseObject]:
        """Return the last events of the output, and the complete response, which is kept from here on."""
        whole = self._pieces[-1].finish != "length"
        events = self._output.end(whole)
        read, written = self.admitted.prompt_tokens, self.used()
        pieces = self._pieces
        response = self._object(
            "completed" if whole else "incomplete",
            completed_at=int(time.time()) if whole else None,
            incomplete_details=None if whole else IncompleteDetails(),
            output=self._output.items,
            usage=ResponseUsage(
                input_tokens=read,
                output_tokens=written,
                output_tokens_details=OutputDetails(reasoning_tokens=self.reasoned()),
                total_tokens=read + written,
            ),
            tandem=tandem(
                [run for piece in pieces for run in piece.runs],
                [piece.stats for piece in pieces if piece.stats],
                [piece.reading for piece in pieces if piece.reading],
                self.admitted.replaced,
            ),
        )
        if self._form.store and not await self._kept(response):
            response.store = False
        return events, response

    async def _kept(self, response: ResponseObject) -> bool:
        """Keep the response; return False if that is not possible."""
        body = msgspec.Raw(response.model_dump_json().encode())
        try:
            return await self._responses.keep(
                self._account, self.id, _encode(Conversation(body, self._items))
            )
        except Unavailable as error:
            logger.warning("a response could not be kept: %s", error)
            return False


class WholeResponse(ResponseAnswer):
    """One JSON object, sent when the output is complete."""

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        self._taken(batch)

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, response = await self._finished()
        await send_json(response.model_dump_json().encode(), self.limits, send)


class StreamedResponse(ResponseAnswer):
    """Server-sent events. The status waits for the first text, so that a refusal still gets its own status."""

    _number = 0

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        events = b""
        if not self._number:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *self.limits]}
            )
            begun = self._object("in_progress").model_dump()
            events += self._event("response.created", {"response": begun})
            events += self._event("response.in_progress", {"response": begun})
        events += b"".join([self._event(*event) for event in self._taken(batch)])
        await send({"type": "http.response.body", "body": events, "more_body": True})

    async def _repeat(self, begun: Begun) -> None:
        await super()._repeat(begun)
        self._number = begun.events

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        last, response = await self._finished()
        last.append((f"response.{response.status}", {"response": response.model_dump()}))
        events = b"".join([self._event(*event) for event in last])
        await send({"type": "http.response.body", "body": events, "more_body": False})

    async def send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._number:
            return await super().send_error(error, scope, receive, send)
        failure = ResponseFailure(code=error.code or "server_error", message=error.message)
        response = self._object("failed", error=failure).model_dump()
        event = self._event("response.failed", {"response": response})
        return await send({"type": "http.response.body", "body": event, "more_body": False})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        """Return the next event."""
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(data) + b"\n\n"
