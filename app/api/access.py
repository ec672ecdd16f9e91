"""Who may ask: whoever has a key; without any key made, whoever is on this machine."""

from __future__ import annotations

from ipaddress import ip_address

from fastapi import Request

from app.api.backend import Backend
from app.api.errors import ApiError
from deployments.keys import Caller, Role, digest

LOCAL = "localhost"


async def authenticate(request: Request, backend: Backend) -> Caller:
    """Who asks. Raises ApiError."""
    secret = _bearer(request)
    caller = await backend.caller(None if secret is None else digest(secret))
    if caller is None:
        raise _unauthorized(secret is None)
    if not caller.keyed:
        _check_local(request)
    return caller


async def operator(request: Request, backend: Backend) -> Caller:
    """The same, who must be an operator."""
    caller = await authenticate(request, backend)
    if caller.role is not Role.OPERATOR:
        raise ApiError(403, "this needs an operator's key", "permission_error", "operator_only")
    return caller


def check_json(request: Request) -> None:
    """A web page may send other types anywhere, without asking. Raises ApiError."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415,
            f"the content type must be application/json, not {kind or 'missing'!r}",
            code="unsupported_media_type",
        )


def _bearer(request: Request) -> str | None:
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def _check_local(request: Request) -> None:
    """Both who asks and the name by which it calls this machine: a web page's name may have been made to mean it."""
    client = request.client
    if client is not None and not _is_loopback(client.host):
        raise ApiError(
            403,
            "no API key has been made, so only this machine is answered: see `tandem keys make`",
            "permission_error",
            "local_only",
        )
    said = request.headers.get("host", LOCAL)
    name, _, port = said.rpartition(":")
    host = name if port.isdigit() else said
    if host != LOCAL and not _is_loopback(host.strip("[]")):
        raise ApiError(
            403,
            f"no API key has been made, so the host must be this machine, not {host!r}",
            "permission_error",
            "host_not_allowed",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _unauthorized(missing: bool) -> ApiError:
    what = "an API key is needed" if missing else "the API key is not valid here"
    return ApiError(401, f"{what}: Authorization: Bearer KEY", "authentication_error", "invalid_api_key")
