"""Responses to admitted requests of /v1/responses, whole or as a stream of OpenAI's events; kept before they end."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from tandem.app.api.completions.admission import Admitted
from tandem.app.api.completions.answer import EVENT_STREAM, AnswerResponse, send_json
from tandem.app.api.completions.choice import ChoicePiece
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.logprobs import chat_logprobs
from tandem.app.api.completions.request_log import Record
from tandem.app.api.completions.responses import tandem
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import ApiError
from tandem.app.api.responses.form import ResponseChat, ResponseForm
from tandem.app.api.responses.objects import (
    IncompleteDetails,
    OutputMessage,
    OutputText,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
    Status,
)
from tandem.deployments.request.assignment import Unavailable

logger = logging.getLogger("ray.serve")

_encode = msgspec.json.Encoder().encode


class Conversation(msgspec.Struct):
    """The part of a response that is kept.

    response: the object.
    messages: the conversation, its output included, without instructions.
    """

    response: msgspec.Raw
    messages: list[dict[str, Any]]


class ResponseAnswer(AnswerResponse):
    """A response that is kept when it is complete, if the client has not said otherwise."""

    def __init__(
        self,
        form: ResponseForm,
        before: Sequence[dict[str, Any]],
        account: str,
        chat: ResponseChat,
        admitted: Admitted,
        backend: ServingBackend,
        coalescer: ChunkCoalescer,
        record: Record,
    ) -> None:
        """before: conversation of the previous response.
        account: whose response it is.
        """
        super().__init__(chat, admitted, backend, coalescer, record)
        self._form, self._account, self._responses = form, account, backend.responses
        self._messages = form.conversation(before)
        self._item = "msg_" + secrets.token_hex(16)
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
            store=form.store,
            temperature=sampling.temperature,
            text=form.text.shown(),
            top_p=sampling.top_p,
            **known,
        )

    def _text(self) -> OutputText:
        """Return the output so far."""
        text = "".join(piece.text for piece in self._pieces)
        return OutputText(text=text, logprobs=[each for p in self._pieces for each in self._logprobs(p)])

    def _logprobs(self, piece: ChoicePiece) -> list[dict[str, Any]]:
        scores: list[dict[str, Any]] = chat_logprobs(piece.scored, self.admitted.tokenizer)["content"]
        return scores

    async def _finished(self) -> ResponseObject:
        """Return the complete response, which is kept from here on."""
        whole = self._pieces[-1].finish != "length"
        message = OutputMessage(
            id=self._item, status="completed" if whole else "incomplete", content=[self._text()]
        )
        read, written = self.admitted.prompt_tokens, self.used()
        pieces = self._pieces
        response = self._object(
            "completed" if whole else "incomplete",
            completed_at=int(time.time()) if whole else None,
            incomplete_details=None if whole else IncompleteDetails(),
            output=[message],
            usage=ResponseUsage(input_tokens=read, output_tokens=written, total_tokens=read + written),
            tandem=tandem(
                [run for piece in pieces for run in piece.runs],
                [piece.stats for piece in pieces if piece.stats],
                [piece.reading for piece in pieces if piece.reading],
            ),
        )
        if self._form.store and not await self._kept(response):
            response.store = False
        return response

    async def _kept(self, response: ResponseObject) -> bool:
        """Keep the response; return False if that is not possible."""
        said = {"role": "assistant", "content": response.output[0].content[0].text}
        body = msgspec.Raw(response.model_dump_json().encode())
        try:
            return await self._responses.keep(
                self._account, self.id, _encode(Conversation(body, [*self._messages, said]))
            )
        except Unavailable as error:
            logger.warning("a response could not be kept: %s", error)
            return False


class WholeResponse(ResponseAnswer):
    """One JSON object, sent when the output is complete."""

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        self._pieces += [piece for _, piece in batch]

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json((await self._finished()).model_dump_json().encode(), self.limits, send)


class StreamedResponse(ResponseAnswer):
    """Server-sent events. The status waits for the first text, so that a refusal still gets its own status."""

    _number = 0

    async def take(self, batch: list[tuple[int, ChoicePiece]], send: Send) -> None:
        events = []
        if not self._number:
            await send(
                {"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *self.limits]}
            )
            events = self._opening()
        for _, piece in batch:
            self._pieces.append(piece)
            if piece.text or piece.scored:
                events.append(self._delta(piece))
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})

    async def end(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._finished()
        (message,) = response.output
        (text,) = message.content
        part = text.model_dump()
        events = [
            self._event("response.output_text.done", **self._place, text=text.text, logprobs=text.logprobs),
            self._event("response.content_part.done", **self._place, part=part),
            self._event("response.output_item.done", output_index=0, item=message.model_dump()),
            self._event(f"response.{response.status}", response=response.model_dump()),
        ]
        await send({"type": "http.response.body", "body": b"".join(events), "more_body": False})

    async def send_error(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._number:
            return await super().send_error(error, scope, receive, send)
        failure = ResponseFailure(code=error.code or "server_error", message=error.message)
        event = self._event("response.failed", response=self._object("failed", error=failure).model_dump())
        return await send({"type": "http.response.body", "body": event, "more_body": False})

    @property
    def _place(self) -> dict[str, Any]:
        """Return where the text belongs."""
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _opening(self) -> list[bytes]:
        """Return the events before the first text."""
        begun = self._object("in_progress").model_dump()
        item = OutputMessage(id=self._item, status="in_progress", content=[]).model_dump()
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=OutputText(text="").model_dump()),
        ]

    def _delta(self, piece: ChoicePiece) -> bytes:
        """Return the event of a piece of text."""
        return self._event(
            "response.output_text.delta",
            **self._place,
            delta=piece.text,
            logprobs=self._logprobs(piece),
            tandem={"origins": piece.runs},
        )

    def _event(self, kind: str, **fields: Any) -> bytes:
        """Return the next event."""
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(data) + b"\n\n"
