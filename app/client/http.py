"""Requests over HTTP to the API, and failures in words that help."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT = httpx.Timeout(10.0, read=300.0)
Json = dict[str, Any]
DONE = "[DONE]"
"""Data of the event that ends a stream."""
RESUME_S = 60.0
"""Seconds for which a broken connection to a resumable answer is tried anew."""
RETRY_S = 0.25
SILENCE_S = 1.75
"""Seconds without a sign of life, which comes every second, after which a resumable answer's connection is dead."""


class ClientError(Exception):
    """An error, with a remedy if there is one."""


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turns the failures of HTTP itself into ClientError."""
    try:
        yield
    except httpx.InvalidURL as error:
        raise ClientError(f"{url!r} is not an address: {error}") from None
    except httpx.UnsupportedProtocol:
        raise ClientError(f"{url!r} is not an address; one looks like http://127.0.0.1:8000") from None
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ClientError(
                f"the certificate of {url} is not trusted ({error}); let SSL_CERT_FILE name the file of its authority, "
                "and --url or TANDEM_URL the server as the certificate does"
            ) from None
        hint = "start a server with `tandem up`, or name one that runs with --url or TANDEM_URL"
        raise ClientError(f"no server answers at {url} ({error}); {hint}") from None
    except httpx.TimeoutException:
        raise ClientError(f"the server at {url} does not answer in time") from None
    except httpx.TransportError as error:
        raise ClientError(f"the connection to {url} broke off ({error or type(error).__name__})") from None


def refusal(reply: httpx.Response) -> ClientError:
    """A reply's error, in the server's words; `reply` must have been read."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = "this does not seem to be a Tandem server"
    again = reply.headers.get("retry-after")
    return ClientError(f"{message} (HTTP {reply.status_code}{f', try again in {again} s' if again else ''})")


class _NotYet(ClientError):
    """A reply of a server that is not up again."""

    def __init__(self, reply: httpx.Response) -> None:
        super().__init__(str(refusal(reply)))


def _of_a_proxy(reply: httpx.Response) -> bool:
    """Whether an error is not the API's own, or one that ends by itself."""
    try:
        return reply.status_code == httpx.codes.SERVICE_UNAVAILABLE or "error" not in reply.json()
    except ValueError:
        return True


def event(line: str) -> Json | None:
    """The object of one line of an event stream; None for other lines and for the closing one."""
    if not line.startswith("data: ") or line == f"data: {DONE}":
        return None
    parsed: Json = json.loads(line.removeprefix("data: "))
    if "error" in parsed:
        raise ClientError(f"the answer broke off: {parsed['error'].get('message', 'no reason given')}")
    return parsed


def authorization(key: str | None = None) -> dict[str, str]:
    """Return the header with an API key: `key`, or else that in TANDEM_API_KEY; none where there is neither."""
    key = key or os.environ.get("TANDEM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


class HttpClient:
    """A server at `url`. All methods raise ClientError."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        with explained(url):
            self._http = httpx.Client(base_url=url, timeout=TIMEOUT, headers=authorization(key))

    def get(self, path: str) -> Json:
        """The JSON object at a path."""
        return self._ask("GET", path)

    def patch(self, path: str, changes: Json) -> Json:
        """Send a PATCH request; return the changed resource."""
        return self._ask("PATCH", path, changes)

    def post(self, path: str, form: Json) -> Json:
        """Send a POST request; return the reply's JSON."""
        return self._ask("POST", path, form)

    def delete(self, path: str) -> None:
        """Send a DELETE request."""
        self._ask("DELETE", path)

    def text(self, path: str) -> str:
        """Return the text at a path."""
        return self._reply("GET", path).text

    def _reply(self, method: str, path: str, body: Json | None = None) -> httpx.Response:
        with explained(self.url):
            reply = self._http.request(method, path, json=body)
            if reply.is_error:
                raise refusal(reply)
            return reply

    def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        reply = self._reply(method, path, body)
        if reply.status_code == httpx.codes.NO_CONTENT:
            return {}
        try:
            found: Json = reply.json()
        except ValueError:
            raise refusal(reply) from None
        return found

    def model(self) -> str:
        """The first model that the server names."""
        models = self.get("/v1/models")["data"]
        if not models:
            raise ClientError(f"the server at {self.url} serves no model")
        return str(models[0]["id"])

    def chat(self, request: Json) -> Generator[Json, None, None]:
        """The chunks of a streamed answer as they come; closing the generator stops the answer, unless it is resumable.

        A connection that breaks is made anew where the events have numbers, which says that the answer is resumable.
        One of such an answer that is silent counts as broken, and the answer is asked for anew if it had no event; each
        time in a row the silence may be twice as long, as a server that is slow or older is not helped by more of them.
        """
        resumable, silence_s = request.get("tandem", {}).get("resumable"), SILENCE_S
        last, broken_s, asked = "", math.inf, {"json": {**request, "stream": True}}
        while True:
            limits = {"timeout": httpx.Timeout(TIMEOUT.connect, read=silence_s)} if resumable else {}
            with explained(self.url):
                try:
                    for last, line in self._events({**asked, **limits}):
                        broken_s, silence_s = math.inf, SILENCE_S
                        if chunk := event(line):
                            yield chunk
                        elif last:
                            return
                    if not last:
                        return
                except (httpx.TransportError, _NotYet) as error:
                    silent = bool(limits) and isinstance(error, httpx.ReadTimeout)
                    if not (last or silent) or time.monotonic() - broken_s > RESUME_S:
                        raise
                    silence_s *= 2 if silent else 1
            if last:
                asked = {"headers": {"Last-Event-ID": last}}
            broken_s = min(broken_s, time.monotonic())
            time.sleep(RETRY_S)

    def _events(self, asked: Json) -> Iterator[tuple[str, str]]:
        """Yield number, "" if there is none, and line of each event of a chat. Raises _NotYet and ClientError if it is
        refused, httpx.TransportError."""
        with self._http.stream("POST", "/v1/chat/completions", **asked) as reply:
            if reply.is_error:
                reply.read()
                raise (_NotYet if "headers" in asked and _of_a_proxy(reply) else refusal)(reply)
            number = ""
            for line in reply.iter_lines():
                if line.startswith("id: "):
                    number = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    yield number, line

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()
