"""Questions to a Tandem server, and answers whose every piece has an origin."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tandem.app.client import http
from tandem.app.client.http import DEFAULT_URL, Json

Messages = Sequence[Mapping[str, Any]]


class Piece(NamedTuple):
    """A run of an answer's text.

    origin: where its tokens come from (cloud, device, draft, corrected, bonus, sketch, expansion); "" if not told.
    """

    text: str
    origin: str


def pieces(chunk: Json) -> Iterator[Piece]:
    """Split a streamed chunk of the API by its origins, which count characters."""
    text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    for origin, characters in chunk.get("tandem", {}).get("origins", []):
        yield Piece(text[:characters], origin)
        text = text[characters:]
    if text:
        yield Piece(text, "")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    pieces: its text by origin, in order.
    stats: figures of the request, as docs/api.md describes them.
    finish: "stop" or "length".
    """

    pieces: tuple[Piece, ...]
    stats: Mapping[str, Any]
    finish: str

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class Stream(Iterator[Piece]):
    """An answer while it is written: iterate over its pieces; `answer` is complete when they end.

    `close`, or the end of a `with`, stops the answer.
    """

    def __init__(self, chunks: Generator[Json, None, None]) -> None:
        self._chunks, self._pieces = chunks, self._read(chunks)
        self._seen: list[Piece] = []
        self._stats: Mapping[str, Any] = {}
        self._finish = ""

    def _read(self, chunks: Iterator[Json]) -> Iterator[Piece]:
        for chunk in chunks:
            self._stats = chunk.get("tandem", {}).get("stats", self._stats)
            self._finish = next(
                (c["finish_reason"] for c in chunk["choices"] if c.get("finish_reason")), self._finish
            )
            for piece in pieces(chunk):
                self._seen.append(piece)
                yield piece

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def answer(self) -> Answer:
        """Return the answer so far."""
        return Answer(tuple(self._seen), self._stats, self._finish)

    def close(self) -> None:
        self._chunks.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """A Tandem server at `url`.

    key: an API key; None takes TANDEM_API_KEY from the environment, if it is set.
    Methods raise tandem.ClientError.
    """

    def __init__(self, url: str = DEFAULT_URL, key: str | None = None) -> None:
        self._http = http.HttpClient(url, key)
        self._model: str | None = None

    def ask(self, question: str | Messages, **wishes: Any) -> Answer:
        """Return the whole answer; arguments as for `stream`."""
        with self.stream(question, **wishes) as stream:
            for _ in stream:
                pass
        return stream.answer

    def stream(
        self,
        question: str | Messages,
        *,
        mode: str | None = None,
        device: str | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int | None = None,
        **options: Any,
    ) -> Stream:
        """Ask and return the answer's pieces as they come.

        question: a user's message, or a conversation as OpenAI's API has it.
        mode: cloud, device, speculative, race, sketch …; None leaves it to the server.
        device: the name of the device that takes part.
        max_tokens: tokens of the answer at most.
        options: further fields of the API's `tandem` object (window, budget, min_quality …).
        """
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        if self._model is None:
            self._model = self._http.model()
        request = {
            "model": self._model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "tandem": {"mode": mode, "device": device, **options},
        }
        return Stream(self._http.chat(request))

    def devices(self) -> list[Json]:
        """Return the registered devices."""
        found: list[Json] = self._http.get("/v1/devices")["data"]
        return found

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
