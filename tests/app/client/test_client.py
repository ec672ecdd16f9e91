"""The Python client against a server with a null model."""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import tandem
from tandem.app.client.http import SILENCE_S, HttpClient
from tests.app.api.null_backend import NullBackend

SAYS = "Zürich has three bridges."


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(says=SAYS, ledger=tmp_path / "ledger.sqlite")


def test_an_answer_tells_where_each_piece_comes_from(url: str) -> None:
    with tandem.Client(url) as client:
        answer = client.ask("Hello?", mode="speculative", device="pixel-1")
    assert answer.text == SAYS
    assert (
        {piece.origin for piece in answer.pieces}
        == {"draft", "corrected", "bonus"} & {piece.origin for piece in answer.pieces}
        != {"cloud"}
    )
    assert answer.stats["mode"] == "speculative"
    assert answer.finish == "stop"


def test_wishes_reach_the_server(url: str, backend: NullBackend) -> None:
    talk = [{"role": "user", "content": "Hello?"}]
    with tandem.Client(url) as client:
        client.ask(talk, mode="speculative", window=3, max_tokens=9, temperature=0.5, seed=7)
    (job,) = backend.jobs
    assert (job.mode, job.sampling.max_tokens, job.sampling.temperature, job.sampling.seed) == (
        "speculative",
        9,
        0.5,
        7,
    )


def test_a_stream_that_is_closed_stops_the_answer(url: str) -> None:
    with tandem.Client(url) as client, client.stream("Hello?") as stream:
        first = next(stream)
    assert first.text
    assert SAYS.startswith(stream.answer.text)
    assert stream.answer.finish == ""


def test_what_is_refused_says_why(url: str) -> None:
    with (
        tandem.Client(url) as client,
        pytest.raises(tandem.ClientError, match="mode 'hover' is not served here"),
    ):
        client.ask("Hello?", mode="hover")


class Cutting(socketserver.ThreadingTCPServer):
    """A proxy that passes on so many bytes of the first reply to a chat, and then breaks the connection.

    silent: it says nothing more instead, until it is `over`.
    """

    daemon_threads = True

    def __init__(self, url: str, after: int, silent: bool = False) -> None:
        self.there, self.left, self.silent = httpx.URL(url), after, silent
        self.over = threading.Event()
        super().__init__(("127.0.0.1", 0), Passing)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Passing(socketserver.BaseRequestHandler):
    server: Cutting

    def handle(self) -> None:
        with socket.create_connection((self.server.there.host, self.server.there.port)) as there:
            cuts = False
            while True:
                ready, _, _ = select.select([self.request, there], [], [])
                for end in ready:
                    if not (data := end.recv(2**16)):
                        return
                    if end is self.request:
                        cuts = cuts or (b"POST" in data and self.server.left > 0)
                        there.sendall(data)
                        continue
                    if cuts:
                        data, self.server.left = data[: self.server.left], self.server.left - len(data)
                    self.request.sendall(data)
                    if cuts and self.server.left <= 0:
                        if self.server.silent:
                            self.server.over.wait(30)
                        return


@pytest.mark.parametrize("after", [700, 850, 1000, 1100])
def test_a_broken_connection_is_made_anew(url: str, backend: NullBackend, after: int) -> None:
    """Wherever it breaks, in the middle of an event, too."""
    with Cutting(url, after) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        with tandem.Client(proxy.url) as client:
            answer = client.ask("Hello?", resumable=True)
        proxy.shutdown()
        thread.join()
    assert proxy.left <= 0, "it broke"
    assert (answer.text, answer.finish) == (SAYS, "stop")
    assert len(backend.jobs) == 1


@pytest.mark.parametrize("after", [0, 850])
def test_a_silent_connection_is_made_anew(
    url: str, backend: NullBackend, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any event the answer is asked for anew."""
    monkeypatch.setattr("tandem.app.client.http.SILENCE_S", 0.3)
    with Cutting(url, after or 1, silent=True) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        with tandem.Client(proxy.url) as client:
            answer = client.ask("Hello?", resumable=True)
        proxy.over.set()
        proxy.shutdown()
        thread.join()
    assert (answer.text, answer.finish) == (SAYS, "stop")
    assert len(backend.jobs) == (1 if after else 2)


def test_each_silence_in_a_row_may_be_twice_as_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is slow is not asked more and more often."""
    waited: list[float] = []

    def silent(client: HttpClient, asked: dict[str, Any]) -> Iterator[tuple[str, str]]:
        waited.append(asked["timeout"].read)
        if len(waited) == 4:
            raise tandem.ClientError("enough")
        raise httpx.ReadTimeout("")

    monkeypatch.setattr(HttpClient, "_events", silent)
    monkeypatch.setattr("tandem.app.client.http.RETRY_S", 0.0)
    with tandem.Client(url) as client, pytest.raises(tandem.ClientError, match="enough"):
        client.ask("Hello?", resumable=True)
    assert waited == [SILENCE_S, 2 * SILENCE_S, 4 * SILENCE_S, 8 * SILENCE_S]


def test_an_answer_that_is_not_resumable_breaks_off(url: str) -> None:
    with Cutting(url, 900) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=[0.01])
        thread.start()
        with tandem.Client(proxy.url) as client, pytest.raises(tandem.ClientError, match="broke off"):
            client.ask("Hello?")
        proxy.shutdown()
        thread.join()


def test_devices(url: str, backend: NullBackend) -> None:
    with tandem.Client(url) as client:
        assert {device["name"] for device in client.devices()} == set(backend.snapshot.devices)
