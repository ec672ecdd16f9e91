"""The Python client against a server with a null model."""

from __future__ import annotations

import pytest

import tandem
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


def test_devices(url: str, backend: NullBackend) -> None:
    with tandem.Client(url) as client:
        assert {device["name"] for device in client.devices()} == set(backend.snapshot.devices)
