"""The HTTP API: OpenAI's endpoints, what Tandem adds to them, and what operators ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from app.api import metrics
from app.api.account import AccountChange, AccountView, account_key
from app.api.admission import admit, read_body
from app.api.answer import StreamedAnswer, WholeAnswer
from app.api.backend import Backend
from app.api.errors import ApiError, NotReady, api_error, model_not_found
from app.api.gather import ChunkCoalescer
from app.api.responses import ChatCompletion, Completion, Model, ModelList
from app.api.schema import ChatRequest, CompletionRequest, DeviceName
from engine.base import EngineError

REFERENCE = "#/components/schemas/{model}"
MAX_BODY = 2**20
"""Bytes of a request's body; a longer one is refused."""
BODY_S = 30.0
"""Seconds in which it must have come."""


def create_api(backend: Backend, coalescer: ChunkCoalescer | None = None) -> FastAPI:
    """The ASGI application.

    With Ray Serve: `@serve.ingress()` on a class whose `__serve_build_asgi_app__` returns `create_api(self)`.
    """
    api = FastAPI(title="Tandem", version="0.1.0", description=__doc__)
    _add_openai_endpoints(api, backend, coalescer or ChunkCoalescer())
    _add_own_endpoints(api, backend)
    invalid = (ValidationError, RequestValidationError)
    for kind in (Exception, ApiError, NotReady, EngineError, HTTPException, *invalid):
        api.exception_handler(kind)(_answer_error)
    api.openapi = partial(_documentation, api.openapi)  # type: ignore[method-assign]
    return api


def _add_openai_endpoints(api: FastAPI, backend: Backend, coalescer: ChunkCoalescer) -> None:
    async def complete(request: Request, form: type[ChatRequest] | type[CompletionRequest]) -> Response:
        mode = None
        try:
            wanted = form.model_validate_json(await read_body(request, MAX_BODY, BODY_S))
            mode = wanted.tandem.mode
            admitted = await admit(wanted, backend, account_key(request, wanted.tandem.named))
        except Exception as failure:
            error = api_error(failure)
            metrics.request_done(mode if error.code != "unknown_mode" else None, error.status)
            return error.response()
        kind = StreamedAnswer if wanted.stream else WholeAnswer
        return kind(wanted, admitted, backend.run, coalescer)

    @api.post("/v1/chat/completions", response_model=ChatCompletion, openapi_extra=_body(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        return await complete(request, ChatRequest)

    @api.post("/v1/completions", response_model=Completion, openapi_extra=_body(CompletionRequest))
    async def completions(request: Request) -> Response:
        return await complete(request, CompletionRequest)

    @api.get("/v1/models")
    async def models() -> ModelList:
        return ModelList(data=_models(backend))

    @api.get("/v1/models/{model:path}")
    async def model(model: str) -> Model:
        known = {card.id: card for card in _models(backend)}
        if model not in known:
            raise model_not_found(model, list(known))
        return known[model]


def _add_own_endpoints(api: FastAPI, backend: Backend) -> None:
    @api.get("/v1/devices")
    async def devices() -> dict[str, Any]:
        return {"object": "list", "data": await backend.devices()}

    @api.get("/v1/account")
    async def account(request: Request, device: DeviceName | None = None) -> AccountView:
        """Of the API key, or without one of a device."""
        key = account_key(request, device)
        return AccountView.of(key, await backend.account(key))

    @api.patch("/v1/account", openapi_extra=_body(AccountChange))
    async def change_account(request: Request, device: DeviceName | None = None) -> AccountView:
        """Set the budget and the exchange rate."""
        wanted = AccountChange.model_validate_json(await read_body(request, MAX_BODY, BODY_S))
        key = account_key(request, device)
        changed = await backend.change_account(key, wanted.budget, wanted.exchange_rate)
        return AccountView.of(key, changed)

    @api.get("/healthz")
    async def alive() -> dict[str, str]:
        """This process answers; whether the rest is up, /readyz says."""
        return {"status": "ok"}

    @api.get("/readyz")
    async def ready() -> JSONResponse:
        """200 with what is up, or 503 with the reasons."""
        try:
            return JSONResponse({"status": "ready", **await backend.ready()})
        except NotReady as error:
            return JSONResponse({"status": "not ready", "reasons": error.reasons}, 503)

    @api.get("/metrics")
    async def prometheus() -> Response:
        """Of this replica."""
        return Response(metrics.exposition(), media_type=metrics.CONTENT_TYPE)


def _body(form: type[BaseModel]) -> dict[str, Any]:
    """For the documentation: the endpoints read their bodies themselves, to refuse them as OpenAI does."""
    schema = {"$ref": REFERENCE.format(model=form.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _documentation(generated: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """/openapi.json, with the requests' schemas."""
    forms: list[Any] = [
        (ChatRequest, "validation"),
        (CompletionRequest, "validation"),
        (AccountChange, "validation"),
    ]
    _, definitions = models_json_schema(forms, ref_template=REFERENCE)
    documentation = generated()
    documentation["components"]["schemas"].update(definitions["$defs"])
    return documentation


def _models(backend: Backend) -> list[Model]:
    return [Model(id=card.id, context=card.context, vocabulary=card.vocabulary) for card in backend.models()]


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):  # from the routing: no such path, or another method
        what = f"{error.detail}: {request.method} {request.url.path}"
        return ApiError(error.status_code, what, code="not_found").response()
    return api_error(error).response()
