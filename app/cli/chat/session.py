"""A chat on the terminal: questions and commands, line by line."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tandem.app.cli.chat.conversation import Conversation
from tandem.app.cli.chat.interrupt import interruptible
from tandem.app.cli.chat.store import Store
from tandem.app.cli.terminal.render import Screen, show
from tandem.app.client.http import ClientError, HttpClient

Read = Callable[[], str]
"""Returns what was typed. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""


class Quit(Exception):
    """Ends the chat."""


class Chat:
    """A conversation with its screen and its store.

    saved: name under which it is stored; None before it is.
    """

    def __init__(self, client: HttpClient, talk: Conversation, screen: Screen, store: Store) -> None:
        self.client, self.talk, self.screen, self.store = client, talk, screen, store
        self.saved: str | None = None

    def say(self, text: str, style: str = "dim") -> None:
        """Print something that is no answer."""
        self.screen.notes.print(Text(text, style), soft_wrap=True)

    def ask(self, question: str) -> None:
        """Print the answer. Raises ClientError, KeyboardInterrupt."""
        with self.talk.ask(question) as stream:
            try:
                with interruptible():
                    show(stream, self.screen)
            except (ClientError, KeyboardInterrupt):
                self.screen.answers.print()  # ends the line that the answer has begun
                raise

    def loop(self, read: Read, command: Callable[[Chat, str], None]) -> None:
        """Answer until the person has had enough: Ctrl-C stops an answer, the end of the input the chat.

        command: does what a line that begins with a slash says; two slashes begin a question with one.
        """
        self.say(f"{self.talk.request['model']} at {self.client.url}; /help lists what else can be typed")
        while True:
            try:
                self._take(read().strip(), command)
            except EOFError:
                return
            except Quit:
                return
            except KeyboardInterrupt:
                self.say("(stopped; Ctrl-D leaves)")
            except ClientError as error:
                self.say(str(error), "red")

    def _take(self, line: str, command: Callable[[Chat, str], None]) -> None:
        if line.startswith("/") and not line.startswith("//"):
            command(self, line)
        elif line:
            self.ask(line[1:] if line.startswith("//") else line)
