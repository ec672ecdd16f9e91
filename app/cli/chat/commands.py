"""Commands of a chat: lines that begin with a slash."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from textwrap import shorten
from typing import NamedTuple

from tandem.app.cli.chat.session import Chat, Quit, cards, examples
from tandem.app.cli.terminal.render import DEVICE_COLUMNS, device_row, show_stats, show_table
from tandem.app.client.http import ClientError
from tandem.deployments.config.explain import no_such
from tandem.deployments.modes import AUTO, MODES
from tandem.policies.routing.collaboration import ANY_DEVICE

UNSET = "-"
"""Argument that takes a setting back."""
KEYS = """\
Enter sends. Alt-Enter, or a backslash at the end of the line, begins another line. Up and Down recall what was typed
before, Ctrl-R searches it. Ctrl-C stops an answer, Ctrl-D leaves. A question that begins with a slash: type two.
Without an argument, /mode, /device, /system, /model and /load show what there is."""


class Command(NamedTuple):
    """A command.

    argument: its name in the help; "" if there is none.
    does: what it does.
    run: does it.
    """

    argument: str
    does: str
    run: Callable[[Chat, str], None]


def run(chat: Chat, line: str) -> None:
    """Do what a line says that begins with a slash. Raises ClientError, Quit."""
    name, *rest = line.split(maxsplit=1)
    command = COMMANDS.get(name)
    if command is None:
        raise ClientError(no_such("command", name, list(COMMANDS)))
    argument = rest[0] if rest else ""
    if argument and not command.argument:
        raise ClientError(f"{name} takes no argument")
    command.run(chat, argument)


def _help(chat: Chat, _: str) -> None:
    width = max(len(f"{name} {command.argument}") for name, command in COMMANDS.items())
    for name, command in COMMANDS.items():
        chat.say(f"{f'{name} {command.argument}':{width}}  {command.does}", "")
    chat.say(KEYS)
    if questions := examples(chat.card()):
        chat.say("Questions to try:\n" + "\n".join(questions))


def _mode(chat: Chat, name: str) -> None:
    _choose(chat, "mode", name, [AUTO, *chat.card().get("modes", MODES)])


def _device(chat: Chat, name: str) -> None:
    found = chat.client.get("/v1/devices")["data"]
    if not name and found:
        show_table(chat.screen.notes, DEVICE_COLUMNS, map(device_row, found))
    _choose(chat, "device", name, [ANY_DEVICE, *(device["name"] for device in found)])


def _choose(chat: Chat, what: str, name: str, allowed: Sequence[str]) -> None:
    """Set a wish of the request's `tandem` object, or show it."""
    wishes = chat.talk.request["tandem"]
    if name == UNSET:
        wishes[what] = None
    elif name in allowed:
        wishes[what] = name
    elif name:
        raise ClientError(no_such(what, name, allowed))
    chosen = wishes.get(what) or "the server's choice"
    others = "" if name else f" (there are: {', '.join(allowed)}; {UNSET} leaves it to the server)"
    chat.say(f"{what}: {chosen}{others}")


def _system(chat: Chat, text: str) -> None:
    if text:
        chat.talk.system = None if text == UNSET else text
    chat.say(f"system message: {chat.talk.system or 'none'}")


def _model(chat: Chat, name: str) -> None:
    there = [name for card in cards(chat.client) for name in (card["id"], *card.get("aliases", ()))]
    if name and name not in there:
        raise ClientError(no_such("model", name, there))
    if name:
        chat.talk.request["model"] = name
    chat.say(f"model: {chat.talk.request['model']}" + ("" if name else f" (there are: {', '.join(there)})"))


def _new(chat: Chat, _: str) -> None:
    chat.talk.restart()
    chat.saved = None
    chat.say("a new conversation")


def _save(chat: Chat, name: str) -> None:
    if not chat.talk.messages:
        raise ClientError("nothing has been said yet")
    name = name or chat.saved or time.strftime("%Y-%m-%d-%H%M%S")
    path = chat.store.save(name, chat.talk.request["model"], chat.talk.messages)
    chat.saved = name
    chat.say(f"saved as {name}: {path}")


def _load(chat: Chat, name: str) -> None:
    if not name:
        chat.say("\n".join(chat.store.names()) or f"no conversation in {chat.store.conversations}")
        return
    chat.talk.resume(chat.store.load(name))
    chat.saved = name
    said = chat.talk.messages
    chat.say(
        f"{len(said)} messages" + (f"; the last one: {shorten(said[-1]['content'], 200)}" if said else "")
    )


def _stats(chat: Chat, _: str) -> None:
    if chat.talk.last is None:
        raise ClientError("no answer yet")
    if not chat.talk.last.stats:
        raise ClientError("the server told no figures of the last answer, as it was stopped")
    show_stats(chat.talk.last.stats, chat.screen)


def _quit(_: Chat, __: str) -> None:
    raise Quit


COMMANDS = {
    "/help": Command("", "list the commands and keys, and questions to try", _help),
    "/mode": Command("[NAME]", "choose how questions are answered", _mode),
    "/device": Command(
        "[NAME]", f"choose the device that takes part; {ANY_DEVICE}: whichever suits", _device
    ),
    "/system": Command("[TEXT]", f"set the system message; {UNSET} removes it", _system),
    "/model": Command("[NAME]", "choose a model of the server", _model),
    "/new": Command("", "forget what was said, and begin anew", _new),
    "/save": Command("[NAME]", "store the conversation", _save),
    "/load": Command("[NAME]", "go on from a stored conversation", _load),
    "/stats": Command("", "show the last answer's origins, times and cost again", _stats),
    "/quit": Command("", "leave", _quit),
}
