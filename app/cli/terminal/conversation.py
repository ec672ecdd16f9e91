"""A conversation on the terminal: what `tandem chat` does after it knows the server and the wishes."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from rich.console import Console
from rich.text import Text

from tandem.app.cli.terminal.render import show
from tandem.app.client.http import ClientError, HttpClient


class Conversation:
    """Keeps the messages and sends them with each question."""

    def __init__(
        self, client: HttpClient, request: dict[str, Any], system: str | None, console: Console
    ) -> None:
        """request: the body of a chat request, without messages."""
        self._client, self._request, self._console = client, request, console
        self._beginning = [{"role": "system", "content": system}] if system else []
        self._said = list(self._beginning)

    def ask(self, question: str) -> None:
        """Print the answer. Raises ClientError, KeyboardInterrupt; what failed is not remembered."""
        messages = [*self._said, {"role": "user", "content": question}]
        with closing(self._client.chat({**self._request, "messages": messages})) as chunks:
            answer = show(chunks, self._console)
        self._said = [*messages, {"role": "assistant", "content": answer}]

    def loop(self) -> None:
        """Ask and answer until the person has had enough."""
        self._console.print(f"[dim]{self._request['model']} at {self._client.url}; /new, /quit[/]")
        while True:
            try:
                question = self._console.input("[bold]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            if question == "/quit":
                return
            if question == "/new":
                self._said = list(self._beginning)
            elif question:
                self._answer(question)

    def _answer(self, question: str) -> None:
        try:
            self.ask(question)
        except KeyboardInterrupt:
            self._console.print("[dim] (stopped)[/]")
        except ClientError as error:
            self._console.print(Text(str(error), "red"))
