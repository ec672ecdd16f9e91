"""A request for an answer, from its arrival to its response: who asks, what for, and a record of how it fares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from fastapi import Request, Response

from tandem.app.api.completions.admission import Begun
from tandem.app.api.completions.answer import AnswerResponse
from tandem.app.api.completions.request_log import REQUEST_ID, Record
from tandem.app.api.completions.schema import AnswerForm
from tandem.app.api.http.auth import authenticate
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import read_body
from tandem.app.api.http.errors import ApiError, api_error
from tandem.app.api.http.kept_streams import KeptStream, KeptStreams
from tandem.app.api.tracing.root import begin
from tandem.deployments.access.kept.streams import StreamCopy, StreamRequest
from tandem.deployments.access.keys import Caller
from tandem.policies.routing.collaboration import ANY_DEVICE

LAST_EVENT = "last-event-id"
"""Header with the number of the last event that a client has of a resumable stream."""
Make = Callable[[Any, Caller, Caller, Record, Begun | None], Awaitable[AnswerResponse]]
"""Makes the answer to a form, of the caller and who pays; raises what `api_error` knows. The last argument is what
another replica of the API has said of it."""
Respond = Callable[[AnswerForm, AnswerResponse, Caller, bytes], Response]
"""Makes the response to a form and its body, of the caller, that sends the answer."""


class _Kind(NamedTuple):
    form: type[AnswerForm]
    make: Make


class Answering:
    """Answers at some paths of the API, each with a form, and what makes its answers.

    streams: resumable answers of this process.
    """

    def __init__(self, backend: ServingBackend, streams: KeptStreams) -> None:
        self._backend, self.streams = backend, streams
        self._moving = WeakValueDictionary[str, asyncio.Lock]()  # of streams that come here, by id
        self._kinds: dict[str, _Kind] = {}

    def add(self, path: str, form: type[AnswerForm], make: Make) -> None:
        """Answer requests at a path."""
        self._kinds[path] = _Kind(form, make)

    async def answer(self, request: Request, path: str) -> Response:
        """Return the response to a request at a path, or to its failure, which is counted; or the rest of the stream
        whose last event it names."""
        if (last := request.headers.get(LAST_EVENT)) is not None:
            id, _, number = last.rpartition(":")
            if not (number.isascii() and number.isdigit()):
                raise ApiError(400, f"Last-Event-ID: {last!r} is no event's", code="invalid_value")
            return await self.rest(request, id, int(number))

        async def body() -> bytes:
            return await read_body(request, self._backend.api)

        def respond(form: AnswerForm, answer: AnswerResponse, caller: Caller, body: bytes) -> Response:
            if not form.tandem.resumable:
                return answer
            stream = KeptStream(
                answer.id, caller.account, StreamRequest(path, body, answer.created), answer.said
            )
            return self.streams.start(stream, answer.outliving, self._backend.api.resume_s)

        return await self._answered(request, self._kinds[path], body, respond)

    async def rest(self, request: Request, id: str, after: int) -> Response:
        """Return the response that sends a resumable stream from behind its event `after`, -1 for all of it; if another
        replica of the API has made it, it goes on here. Raises ApiError."""
        caller, keep_s = await authenticate(request, self._backend), self._backend.api.resume_s
        async with self._moving.setdefault(id, asyncio.Lock()):
            found = await self.streams.find(caller.account, id)
            if isinstance(found, KeptStream):
                return self.streams.follow(found, after, keep_s)
            stream = KeptStream.of(id, caller.account, found)
            if found.over or (after != -1 and not stream.has(after)):
                return self.streams.follow(stream, after, keep_s)
            return await self._go_on(request, stream, found, after)

    async def _go_on(self, request: Request, stream: KeptStream, copy: StreamCopy, after: int) -> Response:
        begun = Begun(stream.id, copy.request.created, len(copy.events), copy.said)

        async def body() -> bytes:
            return copy.request.body

        def respond(form: AnswerForm, answer: AnswerResponse, caller: Caller, body: bytes) -> Response:
            stream.said = answer.said
            return self.streams.start(stream, answer.outliving, self._backend.api.resume_s, after)

        return await self._answered(request, self._kinds[copy.request.path], body, respond, begun)

    async def _answered(
        self,
        request: Request,
        kind: _Kind,
        read: Callable[[], Awaitable[bytes]],
        respond: Respond,
        begun: Begun | None = None,
    ) -> Response:
        backend = self._backend
        record = Record(request.headers.get(REQUEST_ID), backend.observe, begin(backend.tracer, request))
        try:
            caller = await authenticate(request, backend)
            record.key = caller.account
            body = await read()
            form = kind.form.model_validate_json(body)
            record.mode, named = form.tandem.mode, form.tandem.named
            device = named if isinstance(named, str) and named != ANY_DEVICE else None
            if form.tandem.resumable and not backend.api.resume_s:
                message = "no stream is resumable here"
                raise ApiError(400, message, code="invalid_value", param="tandem.resumable")
            answer = await kind.make(form, caller, caller.at(device), record, begun)
            return respond(form, answer, caller, body)
        except Exception as failure:
            error = api_error(failure)
            record.end(error.status, error.code)
            return error.response()
