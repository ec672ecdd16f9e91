"""Answers to clients that do not read: their places are free, and the clients are let go."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tandem.app.api.completions.admission import admit
from tandem.app.api.completions.answer import AnswerResponse, StreamedAnswer, WholeAnswer
from tandem.app.api.completions.gather import ChunkCoalescer
from tandem.app.api.completions.request_log import Record
from tandem.app.api.completions.schema import CompletionRequest
from tandem.app.api.http import sending
from tandem.app.api.http.errors import DISCONNECTED
from tandem.app.api.http.sending import PIECE, STUCK_S
from tandem.app.api.routes import create_api
from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Caller, Role
from tests.app.api.null_backend import NullBackend, times
from tests.servers import served
from tests.virtual import in_virtual_time, now_s

SMALL = 4096
"""Bytes of a socket's buffers."""
LONG = {
    "model": "null", "prompt": "tell", "n": 8, "max_tokens": 400, "logprobs": 5, "ignore_eos": True,
}  # fmt: skip
"""A request for an answer far larger than all buffers on the way."""


@pytest.fixture
async def address(backend: NullBackend) -> AsyncIterator[str]:
    async with served(create_api(backend, backend), send_buffer=SMALL) as address:
        yield address


@asynccontextmanager
async def deaf(address: str, secret: str | None, **asked: Any) -> AsyncIterator[socket.socket]:
    """A connection whose client has sent a request and reads nothing."""
    body = json.dumps(LONG | asked).encode()
    key = f"authorization: Bearer {secret}\r\n" if secret else ""
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address.removeprefix('http://')}\r\n{key}"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.setblocking(False)
        url = httpx.URL(address)
        await loop.sock_connect(client, (url.host, url.port))
        await loop.sock_sendall(client, head.encode() + body)
        yield client


async def rest(client: socket.socket) -> bytes:
    """Read until the other side has closed."""
    loop, parts = asyncio.get_running_loop(), []
    async with asyncio.timeout(20):
        while part := await loop.sock_recv(client, PIECE):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("form", [{"stream": True}, {"stream": False}], ids=json.dumps)
async def test_a_place_is_free_when_the_jobs_are_over(backend: NullBackend, address: str, form: Any) -> None:
    await backend.treasury.make("ada", Role.OPERATOR, {})
    _, secret = await backend.treasury.make("bob", Role.USER, {"concurrent": 8})
    async with deaf(address, secret, **form), httpx.AsyncClient(base_url=address, timeout=20) as http:
        await times(8, backend.closed)
        headers = {"authorization": f"Bearer {secret}"}
        reply = await http.post("/v1/completions", json=LONG | {"max_tokens": 1}, headers=headers)
        assert reply.status_code == 200, "it takes all eight places"
        assert len(backend.observations) == 1, "and the first client has not got its answer"
        assert backend.left == [(backend.jobs[0].id, True), (backend.jobs[8].id, True)]


async def test_a_client_that_does_not_read_is_let_go(
    backend: NullBackend, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "STUCK_S", 0.5)
    backend.hold_after = 300  # no job ends by itself; a slow machine's may be let go before that
    async with deaf(address, None, stream=True) as client:
        await times(8, backend.closed)
        got = await rest(client)
    assert backend.left == [(backend.jobs[0].id, False)]
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not got.endswith(b"0\r\n\r\n")
    assert [seen.status for seen in backend.observations] == [DISCONNECTED]
    assert (await backend.engine.stats()).sessions == 0


async def answering(backend: NullBackend, **asked: Any) -> AnswerResponse:
    """An answer that is to be sent."""
    request = CompletionRequest.model_validate(LONG | asked)
    caller = Caller("bob", Role.USER, Terms(0.5, 1e-7), keyed=False)
    admitted = await admit(request, backend, caller)
    kind = StreamedAnswer if request.stream else WholeAnswer
    return kind(request, admitted, backend, ChunkCoalescer(), Record(None, backend.observe))


async def nothing() -> MutableMapping[str, Any]:
    """Receive nothing, as from a client that stays connected."""
    await asyncio.Event().wait()
    return {}


@pytest.mark.parametrize("form", [{"stream": True}, {"stream": False}], ids=json.dumps)
@in_virtual_time
async def test_a_client_that_reads_slowly_gets_all(form: Any) -> None:
    """A whole answer, too, is written in pieces, each of which may take its time."""
    backend, sent = NullBackend(), list[MutableMapping[str, Any]]()

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0.9 * STUCK_S)
        sent.append(message)

    await (await answering(backend, **form))({"type": "http"}, nothing, send)
    assert not sent[-1]["more_body"]
    assert max(len(message.get("body", b"")) for message in sent) <= PIECE or form["stream"]
    assert len(sent) > 2
    assert [seen.status for seen in backend.observations] == [200]


@pytest.mark.parametrize("form", [{"stream": True}, {"stream": False}], ids=json.dumps)
@in_virtual_time
async def test_a_client_has_so_long_and_no_longer(form: Any) -> None:
    backend = NullBackend()

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.Event().wait()

    await (await answering(backend, **form))({"type": "http"}, nothing, send)
    assert STUCK_S <= now_s() <= 2 * STUCK_S
    assert [seen.status for seen in backend.observations] == [DISCONNECTED]


@pytest.mark.parametrize(
    "asked",
    [{"stream": False}, {"stream": True}, {"stream": True, "tandem": {"paced": True, "reader_rate": 50}}],
    ids=json.dumps,
)
@in_virtual_time
async def test_a_request_leaves_before_its_last_piece_is_sent(asked: Any) -> None:
    """The client's next request must not be refused for it; a slowly read answer leaves long before."""
    backend, left = NullBackend(), list[int]()

    async def send(message: MutableMapping[str, Any]) -> None:
        if b'"finish_reason":"length"' in message.get("body", b""):
            left.append(len(backend.left))

    await (await answering(backend, n=1, max_tokens=20, **asked))({"type": "http"}, nothing, send)
    assert left == [1]
    assert backend.left == [(backend.jobs[0].id, True)]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_end_is_told_when_the_bill_is_booked(backend: NullBackend, stream: bool) -> None:
    """The text does not wait for it; a program that counts answers counts none that is not billed."""
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    backend.books.clear()
    response = await answering(backend, stream=stream, n=1, max_tokens=4)
    sending = asyncio.create_task(response({"type": "http"}, nothing, send))
    await times(1, backend.booking)
    await times(1, backend.closed)  # what it used is reported before
    assert bool(sent) == stream
    assert not b"".join(sent).endswith(b"data: [DONE]\n\n")
    backend.books.set()
    await sending
    whole = b"".join(sent)
    assert (
        whole.endswith(b"data: [DONE]\n\n")
        if stream
        else json.loads(whole)["usage"]["completion_tokens"] == 4
    )
