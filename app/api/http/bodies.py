"""Bodies of requests, read by the endpoints themselves so that errors have OpenAI's form and come early."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from tandem.app.api.http.auth import check_json
from tandem.app.api.http.errors import body_too_large, body_too_slow, client_gone
from tandem.app.api.http.settings import ApiSettings

REFERENCE = "#/components/schemas/{model}"

F = TypeVar("F", bound=BaseModel)


async def body_of(request: Request, form: type[F], limits: ApiSettings) -> F:
    """Read and validate the body. Raises ApiError, ValidationError."""
    return form.model_validate_json(await read_body(request, limits))


async def read_body(request: Request, limits: ApiSettings) -> bytes:
    """Read the whole body. Raises ApiError if it is no JSON, too large or too slow, or the client leaves."""
    check_json(request)
    limit, within_s = limits.body_bytes, limits.body_s
    if int(request.headers.get("content-length", 0)) > limit:
        raise body_too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise body_too_large(limit)
    except TimeoutError:
        raise body_too_slow(within_s) from None
    except ClientDisconnect:
        raise client_gone() from None
    return bytes(body)


def described(form: type[BaseModel]) -> dict[str, Any]:
    """Describe a body for the documentation: FastAPI does not see what endpoints read themselves."""
    schema = {"$ref": REFERENCE.format(model=form.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
