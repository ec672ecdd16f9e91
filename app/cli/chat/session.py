"""A chat on the terminal: questions and commands, line by line."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from tandem.app.cli.chat.conversation import Conversation
from tandem.app.cli.chat.interrupt import interruptible
from tandem.app.cli.chat.store import Store
from tandem.app.cli.terminal.render import Screen, show
from tandem.app.client.http import ClientError, HttpClient, Json

Read = Callable[[], str]
"""Returns what was typed. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""


PARTS = {
    "target": "{model} answers",
    "drafter": "{model} drafts for it",
    "expander": "{model} expands its sketches",
    "device": "{model} runs on devices",
}
"""Work of models, by their roles."""


def cards(client: HttpClient) -> list[Json]:
    """Return the server's models, with what it says of each. Raises ClientError."""
    found: list[Json] = client.get("/v1/models")["data"]
    return found


def card_of(client: HttpClient, model: str) -> Json:
    """Return what the server says of a model, by name or alias; nothing of one that it does not have. Raises
    ClientError."""
    return next((card for card in cards(client) if model in (card["id"], *card.get("aliases", ()))), {})


def answering(card: Json) -> str:
    """Return in a sentence which models answer under a name; "" if the server does not say."""
    told = [
        PARTS.get(part["role"], "{model} takes part").format(model=_sized(part))
        for part in card.get("parts", ())
    ]
    return f"{', '.join(told)}." if told else ""


def _sized(part: Json) -> str:
    """Return a model's name, with the number of its parameters if the server knows it."""
    name, parameters = str(part["model"]), part.get("parameters")
    if not parameters:
        return name
    number, word = (parameters / 1e9, "billion") if parameters >= 1e9 else (parameters / 1e6, "million")
    return f"{name} ({number:.3g} {word} parameters)"


def examples(card: Json) -> list[str]:
    """Return questions to try a model with, a line each, and the mode that suits it."""
    return [
        f"  {each['question']}" + (f"  (/mode {each['mode']})" if each.get("mode") else "")
        for each in card.get("examples", ())
    ]


class Quit(Exception):
    """Ends the chat."""


class Chat:
    """A conversation with its screen and its store.

    saved: name under which it is stored; None before it is.
    """

    def __init__(self, client: HttpClient, talk: Conversation, screen: Screen, store: Store) -> None:
        self.client, self.talk, self.screen, self.store = client, talk, screen, store
        self.saved: str | None = None

    def card(self) -> Json:
        """Return what the server says of the chosen model. Raises ClientError."""
        return card_of(self.client, self.talk.request["model"])

    def introduce(self) -> None:
        """Say which models answer, what one should know of them, and what one may ask. Raises ClientError."""
        card = self.card()
        for text in (answering(card), card.get("about", "")):
            if text:
                self.say(text)
        if card.get("demo"):
            self.say("Try, for example:\n" + "\n".join(examples(card)[:2]))

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
        try:
            self.introduce()
        except ClientError as error:
            self.say(str(error), "red")
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
