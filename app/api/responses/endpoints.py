"""OpenAI's /v1/responses: answers in a conversation that the server keeps for a while."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from tandem.app.api.completions.admission import admit
from tandem.app.api.completions.endpoint import answered
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.request_log import Record
from tandem.app.api.http.auth import authenticate
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import described
from tandem.app.api.http.errors import ApiError
from tandem.app.api.responses.answer import Conversation, StreamedResponse, WholeResponse
from tandem.app.api.responses.form import ResponseForm
from tandem.app.api.responses.objects import DeletedResponse, ResponseObject
from tandem.deployments.access.keys import Caller

_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def add_responses(api: FastAPI, backend: ServingBackend, coalescer: ChunkCoalescer) -> None:
    """Add the endpoints."""

    async def respond(form: ResponseForm, caller: Caller, payer: Caller, record: Record) -> Response:
        before = []
        if form.previous_response_id is not None:
            kept = await _kept(backend, caller.account, form.previous_response_id)
            if kept is None:
                raise _previous_not_found(form.previous_response_id)
            before = kept.messages
        chat = form.chat(before)
        admitted = await admit(chat, backend, payer)
        kind = StreamedResponse if form.stream else WholeResponse
        return kind(form, before, caller.account, chat, admitted, backend, coalescer, record)

    @api.post(
        "/v1/responses",
        response_model=ResponseObject,
        responses=_STREAMED,
        openapi_extra=described(ResponseForm),
    )
    async def responses(request: Request) -> Response:
        return await answered(request, ResponseForm, backend, respond)

    @api.get("/v1/responses/{id}", response_model=ResponseObject)
    async def response(request: Request, id: str) -> Response:
        """Show a response that is still kept."""
        caller = await authenticate(request, backend)
        kept = await _kept(backend, caller.account, id)
        if kept is None:
            raise _not_found(id)
        return Response(bytes(kept.response), media_type="application/json")

    @api.delete("/v1/responses/{id}")
    async def delete(request: Request, id: str) -> DeletedResponse:
        """Forget a response."""
        caller = await authenticate(request, backend)
        if not await backend.responses.drop(caller.account, id):
            raise _not_found(id)
        return DeletedResponse(id=id)


async def _kept(backend: ServingBackend, account: str, id: str) -> Conversation | None:
    body = await backend.responses.get(account, id)
    return None if body is None else msgspec.json.decode(body, type=Conversation)


def _not_found(id: str) -> ApiError:
    return ApiError(
        404, f"there is no response {id!r}, or not any more", code="response_not_found", param="id"
    )


def _previous_not_found(id: str) -> ApiError:
    message = f"there is no response {id!r}, or not any more"
    return ApiError(400, message, code="previous_response_not_found", param="previous_response_id")
