"""OpenAI's /v1/responses: answers in a conversation that the server keeps for a while."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Query, Request, Response

from tandem.app.api.completions.admission import Begun, admit
from tandem.app.api.completions.endpoint import Answering
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.request_log import Record
from tandem.app.api.http.auth import authenticate
from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.bodies import described
from tandem.app.api.http.errors import ApiError
from tandem.app.api.responses.answer import (
    Asked,
    Conversation,
    ResponseAnswer,
    StreamedResponse,
    WholeResponse,
)
from tandem.app.api.responses.form import ResponseForm
from tandem.app.api.responses.items import Item
from tandem.app.api.responses.objects import DeletedResponse, InputItems, ResponseObject
from tandem.deployments.access.keys import Caller

_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def add_responses(
    api: FastAPI, backend: ServingBackend, coalescer: ChunkCoalescer, answering: Answering
) -> None:
    """Add the endpoints."""

    async def make(
        form: ResponseForm, caller: Caller, payer: Caller, record: Record, begun: Begun | None
    ) -> ResponseAnswer:
        before: list[Item] = []
        if form.previous_response_id is not None:
            found = await _kept(backend, caller.account, form.previous_response_id)
            if found is None:
                raise _previous_not_found(form.previous_response_id)
            before = found.whole()
        asked = Asked(form, before, caller.account)
        chat = asked.chat()
        admitted = await admit(chat, backend, payer, begun)
        kind = StreamedResponse if form.stream else WholeResponse
        return kind(asked, chat, admitted, backend, coalescer, record)

    answering.add("/v1/responses", ResponseForm, make)

    @api.post(
        "/v1/responses",
        response_model=ResponseObject,
        responses=_STREAMED,
        openapi_extra=described(ResponseForm),
    )
    async def responses(request: Request) -> Response:
        return await answering.answer(request, "/v1/responses")

    @api.get("/v1/responses/{id}", response_model=ResponseObject, responses=_STREAMED)
    async def response(
        request: Request,
        id: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """Show a response that is still kept, or with `stream` the events of a resumable one, behind one of them."""
        if stream:
            return await answering.rest(request, id, -1 if starting_after is None else starting_after)
        caller = await authenticate(request, backend)
        if starting_after is not None:
            message = "starting_after is only allowed where stream is true"
            raise ApiError(400, message, code="invalid_value", param="starting_after")
        found = await _kept(backend, caller.account, id)
        if found is None:
            raise _not_found(id)
        return Response(bytes(found.response), media_type="application/json")

    @api.get("/v1/responses/{id}/input_items")
    async def input_items(
        request: Request,
        id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> InputItems:
        """Show the conversation before a response's output, the latest items first."""
        caller = await authenticate(request, backend)
        found = await _kept(backend, caller.account, id)
        if found is None:
            raise _not_found(id)
        items = found.items if order == "asc" else found.items[::-1]
        ids = [item["id"] for item in items]
        if after is not None and after not in ids:
            raise _no_such_item(after)
        first = 0 if after is None else ids.index(after) + 1
        page = items[first : first + limit]
        return InputItems(
            data=page,
            first_id=page[0]["id"] if page else None,
            last_id=page[-1]["id"] if page else None,
            has_more=first + limit < len(items),
        )

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


def _no_such_item(id: str) -> ApiError:
    return ApiError(400, f"the response has no input item {id!r}", code="invalid_value", param="after")


def _previous_not_found(id: str) -> ApiError:
    message = f"there is no response {id!r}, or not any more"
    return ApiError(400, message, code="previous_response_not_found", param="previous_response_id")
