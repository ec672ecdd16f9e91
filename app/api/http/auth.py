"""Access to the API: by any key but a device's; before such a key is made, from this machine only."""

from __future__ import annotations

from fastapi import Request

from tandem.app.api.http.backend import ServingBackend
from tandem.app.api.http.errors import ApiError
from tandem.cluster.wire.address import is_loopback
from tandem.deployments.access.keys import Caller, Role, digest

LOCAL = "localhost"
FORWARDED_FOR = "x-forwarded-for"
"""Header by which a proxy on this machine names the client; the server has applied it to `request.client`."""


async def authenticate(request: Request, backend: ServingBackend) -> Caller:
    """Return the caller. Raises ApiError."""
    secret = _bearer(request)
    caller = await backend.caller(None if secret is None else digest(secret))
    if caller is None:
        raise _unauthorized(secret is None)
    if caller.role is Role.DEVICE:
        raise ApiError(
            403, "this key is a device's: it opens the gateway, not the API", "permission_error", "device_key"
        )
    if not caller.keyed:
        _check_local(request, backend.behind_proxy)
    return caller


async def operator(request: Request, backend: ServingBackend) -> Caller:
    """Return the caller, who must be an operator. Raises ApiError."""
    caller = await authenticate(request, backend)
    if caller.role is not Role.OPERATOR:
        raise ApiError(403, "this needs an operator's key", "permission_error", "operator_only")
    return caller


def check_json(request: Request) -> None:
    """Refuse other content types, which a web page could send without the browser asking first. Raises ApiError."""
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


def _check_local(request: Request, behind_proxy: bool) -> None:
    """Check that the client is on this machine and calls it by its own name, against DNS rebinding. Raises ApiError."""
    client = request.client
    if behind_proxy and FORWARDED_FOR not in request.headers:  # the proxy would be taken for the client
        raise ApiError(
            403,
            "no API key has been made, and the proxy in front does not name the client: see `tandem keys make`",
            "permission_error",
            "local_only",
        )
    if client is not None and not is_loopback(client.host):
        raise ApiError(
            403,
            "no API key has been made, so only this machine is answered: see `tandem keys make`",
            "permission_error",
            "local_only",
        )
    said = request.headers.get("host", LOCAL)
    name, _, port = said.rpartition(":")
    host = name if port.isdigit() else said
    if not is_loopback(host.strip("[]")):
        raise ApiError(
            403,
            f"no API key has been made, so the host must be this machine, not {host!r}",
            "permission_error",
            "host_not_allowed",
        )


def _unauthorized(missing: bool) -> ApiError:
    what = "an API key is needed" if missing else "the API key is not valid here"
    return ApiError(401, f"{what}: Authorization: Bearer KEY", "authentication_error", "invalid_api_key")
