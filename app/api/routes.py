"""HTTP API: OpenAI's endpoints, Tandem's own, and those for operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from tandem.app.api.admin.account import AccountChange, AccountView, add_terms
from tandem.app.api.admin.fleet import add_fleet
from tandem.app.api.admin.keys import KeyChange, KeyForm, Rotation, add_keys
from tandem.app.api.admin.orders import DeviceChange, ReplicaChange
from tandem.app.api.admin.teams import TeamChange, TeamForm, add_teams
from tandem.app.api.admin.usage import add_usage
from tandem.app.api.completions.admission import Begun, admit
from tandem.app.api.completions.answer import AnswerResponse, StreamedAnswer, WholeAnswer
from tandem.app.api.completions.endpoint import Answering
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.objects import ChatCompletion, Completion, DeletedStream
from tandem.app.api.completions.request_log import Record
from tandem.app.api.completions.schema import ChatRequest, CompletionRequest, DeviceName
from tandem.app.api.experiments.endpoints import ExperimentForm, add_experiments
from tandem.app.api.http.auth import authenticate, operator
from tandem.app.api.http.backend import AdminBackend, OrderBackend, ServingBackend
from tandem.app.api.http.bodies import REFERENCE, described
from tandem.app.api.http.errors import FAILURES, ApiError, ErrorReply, NotReady, api_error, no_embeddings
from tandem.app.api.http.kept_streams import KeptStreams
from tandem.app.api.models.cards import ModelList, ServedModel, model_card, served_model
from tandem.app.api.responses.endpoints import add_responses
from tandem.app.api.responses.form import ResponseForm
from tandem.app.api.tokenize.endpoints import DetokenizeForm, TokenizeForm, add_tokenizer
from tandem.app.page.files import add_page
from tandem.deployments.access.keys import Caller, KeyRefused
from tandem.deployments.access.store import LedgerError
from tandem.deployments.request.assignment import Unavailable
from tandem.engine.base import EngineError

VERSION = metadata.version("tandem-llm")


def create_api(
    backend: ServingBackend,
    admin: AdminBackend | None = None,
    orders: OrderBackend | None = None,
    coalescer: ChunkCoalescer | None = None,
) -> FastAPI:
    """Make the ASGI application.

    With Ray Serve: `@serve.ingress()` on a class whose `__serve_build_asgi_app__` returns `create_api(self, admin)`.
    admin: None if keys and terms are kept elsewhere.
    orders: None if operators' orders are given elsewhere.
    """
    api = FastAPIOffline(
        title="Tandem",
        version=VERSION,
        description=__doc__,
        redoc_url=None,
        responses={status: {"model": ErrorReply, "description": why} for status, why in FAILURES.items()},
    )
    coalescer, answering = coalescer or ChunkCoalescer(), Answering(backend, KeptStreams(backend.streams))
    _add_openai_endpoints(api, backend, coalescer, answering)
    add_responses(api, backend, coalescer, answering)
    add_tokenizer(api, backend)
    _add_own_endpoints(api, backend)
    add_fleet(api, backend, orders)
    add_experiments(api, backend)
    add_page(api)
    if admin is None:
        _refuse_administration(api)
    else:
        add_keys(api, backend, admin)
        add_teams(api, backend, admin)
        add_terms(api, backend, admin)
        add_usage(api, backend, admin)
    if origins := backend.api.cors_origins:
        api.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    invalid = (ValidationError, RequestValidationError)
    for kind in (
        Exception,
        ApiError,
        NotReady,
        EngineError,
        KeyRefused,
        LedgerError,
        HTTPException,
        *invalid,
    ):
        api.exception_handler(kind)(_answer_error)
    api.openapi = cache(partial(_documentation, api.openapi))  # type: ignore[method-assign]  # it takes long
    return api


def _add_openai_endpoints(
    api: FastAPI, backend: ServingBackend, coalescer: ChunkCoalescer, answering: Answering
) -> None:
    async def make(
        wanted: ChatRequest | CompletionRequest,
        caller: Caller,
        payer: Caller,
        record: Record,
        begun: Begun | None,
    ) -> AnswerResponse:
        admitted = await admit(wanted, backend, payer, begun)
        kind = StreamedAnswer if wanted.stream else WholeAnswer
        return kind(wanted, admitted, backend, coalescer, record)

    answering.add("/v1/chat/completions", ChatRequest, make)
    answering.add("/v1/completions", CompletionRequest, make)

    streamed: dict[int | str, dict[str, Any]] = {
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    }

    @api.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        responses=streamed,
        openapi_extra=described(ChatRequest),
    )
    async def chat_completions(request: Request) -> Response:
        return await answering.answer(request, "/v1/chat/completions")

    @api.post(
        "/v1/completions",
        response_model=Completion,
        responses=streamed,
        openapi_extra=described(CompletionRequest),
    )
    async def completions(request: Request) -> Response:
        return await answering.answer(request, "/v1/completions")

    @api.delete("/v1/chat/completions/{id}")
    @api.delete("/v1/completions/{id}")
    async def end(request: Request, id: str) -> DeletedStream:
        """End a resumable stream and its answer."""
        await answering.streams.end((await authenticate(request, backend)).account, id)
        return DeletedStream(id=id)

    @api.get("/v1/models")
    async def models(request: Request) -> ModelList:
        await authenticate(request, backend)
        return ModelList(data=[served_model(card, backend) for card in backend.models()])

    @api.get("/v1/models/{model:path}")
    async def model(request: Request, model: str) -> ServedModel:
        await authenticate(request, backend)
        return served_model(model_card(model, backend), backend)

    @api.post("/v1/embeddings", include_in_schema=False)
    async def embeddings() -> None:
        raise no_embeddings()


def _add_own_endpoints(api: FastAPI, backend: ServingBackend) -> None:
    @api.get("/v1/devices")
    async def devices(request: Request) -> dict[str, Any]:
        """List the registered devices that the key may use."""
        caller = await authenticate(request, backend)
        allowed = caller.terms.devices
        found = await backend.devices()
        return {"object": "list", "data": [d for d in found if allowed is None or d["name"] in allowed]}

    @api.get("/v1/account")
    async def account(
        request: Request, device: DeviceName | None = None, account: str | None = None
    ) -> AccountView:
        """Show the key's account; an operator may name another account and, without keys, anyone a device."""
        key = (await authenticate(request, backend)).at(device).account
        if account is not None and account != key:
            await operator(request, backend)
            key = account
        return AccountView.about(key, await backend.account(key))

    async def alive() -> dict[str, str]:
        """Answer as long as this process runs; /readyz covers the rest."""
        return {"status": "ok"}

    @api.get("/version")
    async def version() -> dict[str, str]:
        return {"version": VERSION}

    async def ready() -> JSONResponse:
        """Answer 200 with what is up, or 503 with what is missing."""
        try:
            return JSONResponse({"status": "ready", **await backend.ready()})
        except NotReady as error:
            missing = error
        except Unavailable as error:
            missing = NotReady([str(error)])
        return JSONResponse({"status": "not ready", "reasons": missing.reasons, **missing.told}, 503)

    # vLLM calls the first one /health, and load balancers ask by HEAD
    for path, asked in (("/healthz", alive), ("/health", alive), ("/readyz", ready)):
        api.get(path)(asked)
        api.head(path, include_in_schema=False)(asked)

    @api.get("/metrics")
    async def prometheus(request: Request) -> Response:
        """Show metrics of all replicas of the API; for operators, once there are keys."""
        if (await backend.caller(None)) is None:
            await operator(request, backend)
        openmetrics = "application/openmetrics-text" in request.headers.get("accept", "")
        text, content_type = await backend.metrics(openmetrics)
        return Response(text, headers={"content-type": content_type})


def _refuse_administration(api: FastAPI) -> None:
    async def refuse(request: Request) -> None:
        raise KeyRefused(
            "keys, teams, the terms of accounts, usage, and orders for the fleet are kept in the cloud"
        )

    for path in ("/v1/keys", "/v1/keys/{id:path}", "/v1/teams", "/v1/teams/{name:path}"):
        api.api_route(path, methods=["GET", "POST", "PATCH", "DELETE"], include_in_schema=False)(refuse)
    api.patch("/v1/account", include_in_schema=False)(refuse)
    api.patch("/v1/fleet/{name:path}", include_in_schema=False)(refuse)
    api.get("/v1/usage", include_in_schema=False)(refuse)


def _documentation(generated: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return /openapi.json with the requests' schemas."""
    forms: list[Any] = [
        (ChatRequest, "validation"),
        (CompletionRequest, "validation"),
        (ResponseForm, "validation"),
        (TokenizeForm, "validation"),
        (DetokenizeForm, "validation"),
        (AccountChange, "validation"),
        (KeyForm, "validation"),
        (KeyChange, "validation"),
        (Rotation, "validation"),
        (TeamForm, "validation"),
        (TeamChange, "validation"),
        (ReplicaChange, "validation"),
        (DeviceChange, "validation"),
        (ExperimentForm, "validation"),
    ]
    _, definitions = models_json_schema(forms, ref_template=REFERENCE)
    documentation = generated()
    documentation["components"]["schemas"].update(definitions["$defs"])
    for operations in documentation["paths"].values():
        for operation in operations.values():
            operation["responses"].pop(
                "422", None
            )  # FastAPI's form of an invalid request, which is a 400 here
    return documentation


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):  # no such path, or another method
        what = f"{error.detail}: {request.method} {request.url.path}"
        return ApiError(error.status_code, what, code="not_found").response()
    return api_error(error).response()
