"""A request for an answer, from its arrival to its response: who asks, what for, and a record of how it fares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from fastapi import Request, Response

from tandem.app.api.completions.answer import AnswerResponse
from tandem.app.api.completions.request_log import REQUEST_ID, Record
from tandem.app.api.completions.schema import AnswerForm
from tandem.app.api.http.auth import authenticate
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import body_of
from tandem.app.api.http.errors import ApiError, api_error
from tandem.app.api.http.kept_streams import KeptStream, KeptStreams
from tandem.app.api.http.settings import ApiSettings
from tandem.app.api.tracing.root import begin
from tandem.deployments.access.keys import Caller
from tandem.policies.routing.collaboration import ANY_DEVICE

F = TypeVar("F", bound=AnswerForm)

LAST_EVENT = "last-event-id"
"""Header with the number of the last event that a client has of a resumable stream."""
Respond = Callable[[F, Caller, Caller, Record], Awaitable[Response]]
"""Makes the response to a form, of the caller and who pays; raises what `api_error` knows."""


async def answered(request: Request, form: type[F], backend: ServingBackend, respond: Respond[F]) -> Response:
    """Return the response to a request, or to its failure, which is counted."""
    record = Record(request.headers.get(REQUEST_ID), backend.observe, begin(backend.tracer, request))
    try:
        caller = await authenticate(request, backend)
        record.key = caller.account
        wanted = await body_of(request, form, backend.api)
        record.mode, named = wanted.tandem.mode, wanted.tandem.named
        device = named if isinstance(named, str) and named != ANY_DEVICE else None
        return await respond(wanted, caller, caller.at(device), record)
    except Exception as failure:
        error = api_error(failure)
        record.end(error.status, error.code)
        return error.response()


def kept(answer: AnswerResponse, account: str, streams: KeptStreams, api: ApiSettings) -> Response:
    """Return the response that sends a resumable answer. Raises ApiError if there is no such thing here."""
    if not api.resume_s:
        raise ApiError(400, "no stream is resumable here", code="invalid_value", param="tandem.resumable")
    return streams.start(KeptStream(answer.id, account), answer.outliving, api.resume_s)


async def resumed(request: Request, backend: ServingBackend, streams: KeptStreams) -> Response | None:
    """Return the rest of the stream whose last event the request names; None if it names none. Raises ApiError."""
    if (last := request.headers.get(LAST_EVENT)) is None:
        return None
    caller = await authenticate(request, backend)
    id, _, number = last.rpartition(":")
    if not (number.isascii() and number.isdigit()):
        raise ApiError(400, f"Last-Event-ID: {last!r} is no event's", code="invalid_value")
    return streams.resume(caller.account, id, int(number), backend.api.resume_s)
