"""Errors in OpenAI's form.

Every failure is answered with {"error": {"message", "type", "param", "code"}} and a matching status; after a stream has
begun, with one last event of that form.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError

from tandem.app.api.http.fields import refusal
from tandem.deployments.access.keys import KeyRefused, NoSuchKey
from tandem.deployments.access.store import LedgerError
from tandem.deployments.access.teams import NoSuchTeam
from tandem.deployments.admission.entry import QuotaExceeded
from tandem.deployments.request.assignment import Unavailable
from tandem.engine.base import EngineError, ServiceRefused

log = logging.getLogger("ray.serve")

INVALID = "invalid_request_error"
FAILURES = {
    400: "the request is not valid, or does not fit",
    401: "no valid API key",
    403: "not allowed with this key, or without a key from another machine",
    404: "no such model, replica, device, key, response, stream, experiment or path",
    408: "the body did not come in time",
    409: "the keys, or what is up, do not allow this change",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "beyond a limit, or no room: Retry-After says when to try again",
    500: "a failure of the server",
    502: "a service that would answer refuses this application, or breaks the form that it was asked for",
    503: "something is not up: Retry-After says when to try again",
}
"""Meaning of each HTTP status of a failure."""
RETRY_AFTER_S = 2.0
_MARK = re.compile(r"\[[a-z_]+\]")
"""Part of a field's place that no client wrote: pydantic's mark of a key that is at fault, or the class of an item."""
DISCONNECTED = 499
"""Status of a request whose client left, by nginx' convention; only metrics and log show it."""


class ErrorObject(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """The body of every failure."""

    error: ErrorObject


class NotReady(Exception):
    """Parts of the application are missing.

    reasons: one for each part, for people.
    told: what is known of the others, as a JSON object.
    """

    def __init__(self, reasons: list[str], told: Mapping[str, Any] = MappingProxyType({})) -> None:
        super().__init__("; ".join(reasons))
        self.reasons, self.told = reasons, told


@dataclass
class ApiError(Exception):
    """An error reply.

    param: the request's field at fault.
    retry_after_s: seconds after which trying again makes sense.
    """

    status: int
    message: str
    type: str = INVALID
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the reply."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}

    def response(self) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.code in (ServiceRefused.code, QuotaExceeded.code):
            headers["x-should-retry"] = "false"  # OpenAI's clients would ask twice more
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return JSONResponse(self.body(), self.status, headers)


# Engine error code → (status, type, the request's field at fault).
_ENGINE_ERRORS: dict[str, tuple[int, str, str | None]] = {
    "invalid_request": (400, INVALID, None),
    "context_length_exceeded": (400, INVALID, None),
    "content_filter": (400, INVALID, None),
    "unknown_mode": (400, INVALID, "tandem.mode"),
    "limits_not_kept": (400, INVALID, "tandem.objective"),
    "prompt_left_device": (400, INVALID, "tandem.mode"),
    "split_mismatch": (400, INVALID, "tandem.mode"),
    "device_not_found": (404, INVALID, "tandem.device"),
    "endpoint_not_found": (404, INVALID, None),
    "order_refused": (409, INVALID, None),
    "overloaded": (429, "rate_limit_error", None),
    "rate_limit_exceeded": (429, "rate_limit_error", None),
    "insufficient_quota": (429, "insufficient_quota", None),
    "engine_stopped": (503, "service_unavailable", None),
    "service_refused": (502, "service_unavailable", None),
    "form_broken": (502, "server_error", None),
}


def api_error(error: Exception) -> ApiError:
    """Return the reply to an exception; one that is not meant for clients is logged and not shown."""
    match error:
        case ApiError():
            return error
        case NotReady() | Unavailable():
            return ApiError(503, str(error), "service_unavailable", "not_ready", retry_after_s=RETRY_AFTER_S)
        case NoSuchKey():
            return ApiError(404, str(error), code="key_not_found")
        case NoSuchTeam():
            return ApiError(404, str(error), code="team_not_found")
        case LedgerError():
            log.error("%s", error)
            return ApiError(
                503,
                "the ledger cannot be written",
                "service_unavailable",
                "ledger_failed",
                retry_after_s=RETRY_AFTER_S,
            )
        case KeyRefused():
            return ApiError(409, str(error), code="key_refused")
        case ValidationError():
            first = error.errors(include_url=False, include_context=False)[0]
            return _invalid_field(first["loc"], first["type"], first["msg"])
        case RequestValidationError():  # of the path or query: the first entry of `loc`
            first = error.errors()[0]
            return _invalid_field(first["loc"][1:], first["type"], first["msg"])
        case EngineError() if error.code in _ENGINE_ERRORS:
            status, kind, param = _ENGINE_ERRORS[error.code]
            again = getattr(error, "retry_after_s", RETRY_AFTER_S) if status in (429, 503) else None
            if isinstance(error, QuotaExceeded):
                again = None  # not before the period ends
            return ApiError(status, str(error), kind, error.code, param, again)
    log.error("request failed", exc_info=error)
    code = error.code if isinstance(error, EngineError) else "internal_error"
    return ApiError(500, "the server failed on this request", "server_error", code)


def model_not_found(model: str, known: list[str]) -> ApiError:
    there = f"there {'are' if len(known) > 1 else 'is'} {', '.join(map(repr, known)) or 'none yet'}"
    return ApiError(
        404, f"the model {model!r} does not exist here; {there}", code="model_not_found", param="model"
    )


def no_embeddings() -> ApiError:
    message = "this server makes no embeddings: its engines write text, and none gives out its hidden states"
    return ApiError(404, message, code="unsupported_endpoint")


def context_overflow(context: int, prompt: int, wanted: int | None, param: str) -> ApiError:
    """Refuse a prompt that leaves no room, all in tokens.

    wanted: output that the client asked for, if it said so.
    param: the field at fault.
    """
    answer = f"{wanted} output tokens" if wanted else "an answer"
    message = f"the model's context is {context} tokens: a prompt of {prompt} leaves no room for {answer}"
    return ApiError(400, message, code="context_length_exceeded", param=param)


def not_allowed(what: str, name: str, allowed: Sequence[str]) -> ApiError:
    """Refuse a mode or device that the account's terms do not include."""
    message = f"this key may not use {what} {name!r}, but {', '.join(allowed)}"
    return ApiError(403, message, "permission_error", f"{what}_not_allowed", f"tandem.{what}")


def too_many_answers(most: int) -> ApiError:
    message = f"at most {most} answers to one request: n, times the number of prompts"
    return ApiError(400, message, code="invalid_value", param="n")


def too_many_min_tokens(least: int, most: int) -> ApiError:
    """Refuse an answer of at least `least` tokens, of which there may be `most`."""
    message = f"min_tokens is {least}, and an answer may have {most} tokens"
    return ApiError(400, message, code="invalid_value", param="min_tokens")


def no_such_token(token: int, vocab_size: int) -> ApiError:
    message = f"logit_bias: there is no token {token}; ids are 0 to {vocab_size - 1}"
    return ApiError(400, message, code="invalid_value", param="logit_bias")


def reader_rate_missing() -> ApiError:
    message = "tandem.paced needs to know how fast the reader is: say tandem.reader_rate, in tokens/s"
    return ApiError(400, message, code="missing_required_parameter", param="tandem.reader_rate")


def grammar_refused(field: str, why: str) -> ApiError:
    return ApiError(400, f"{field}: {why}", code="invalid_value", param=field)


def no_effort(field: str) -> ApiError:
    message = (
        f"{field}: this model's chat template reads no effort; `chat_template_kwargs` sets what it reads"
    )
    return ApiError(400, message, code="unsupported_parameter", param=field)


def not_with_stand_ins(what: str, field: str) -> ApiError:
    """Refuse a field that would show the text with stand-ins."""
    message = (
        f"{what} cannot be asked for where tandem.privacy replaces what is private: a model sees another text"
    )
    return ApiError(400, message, code="invalid_value", param=field)


def no_filling() -> ApiError:
    message = "suffix: this model's vocabulary has no tokens for filling in"
    return ApiError(400, message, code="unsupported_parameter", param="suffix")


def client_gone() -> ApiError:
    """Return the error of a client that left before its request was complete; only the log shows it."""
    return ApiError(DISCONNECTED, "the client has gone", code="client_gone")


def body_too_slow(within_s: float) -> ApiError:
    return ApiError(408, f"the request body did not come within {within_s:g} s", code="body_too_slow")


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request body exceeds {limit} bytes", code="body_too_large")


def _invalid_field(where: Sequence[int | str], kind: str, why: str) -> ApiError:
    """Return the reply to a field that pydantic refused."""
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {why}", code="invalid_json")
    where = [part for part in where if not _MARK.fullmatch(str(part))]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    if kind == "extra_forbidden":
        return ApiError(400, refusal(param), code="unsupported_parameter", param=param)
    message = why.removeprefix("Value error, ")
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    return ApiError(400, f"{param}: {message}" if param else message, code=code, param=param or None)
