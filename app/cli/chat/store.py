"""Conversations on disk, and the questions that the prompt recalls: files that only their user can read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from platformdirs import user_data_path

from tandem.app.client.http import ClientError
from tandem.deployments.config.explain import no_such

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SUFFIX = ".json"


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message, as in OpenAI's API."""

    role: Literal["system", "user", "assistant"]
    content: str


class Document(msgspec.Struct, frozen=True, tag_field="kind", tag="tandem conversation"):
    """A conversation's file.

    model: name of the model that answered last.
    saved: local time, ISO 8601.
    messages: all of them, a system message first.
    """

    model: str
    saved: str
    messages: tuple[Message, ...]


class Store:
    """The conversations of a folder, a JSON file each.

    folder: None: `tandem` in the user's data directory ($XDG_DATA_HOME, or ~/.local/share).
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = user_data_path("tandem") if folder is None else folder

    @property
    def conversations(self) -> Path:
        """Return the folder of the conversations."""
        return self.folder / "conversations"

    def names(self) -> list[str]:
        """Return the names of all conversations, the one saved last first."""
        found = [path for path in self.conversations.glob(f"*{SUFFIX}") if NAME.fullmatch(path.stem)]
        return [path.stem for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]

    def save(self, name: str, model: str, messages: Sequence[Mapping[str, str]]) -> Path:
        """Write a conversation, in place of one of that name, and return its file. Raises ClientError."""
        path = self._path(name)
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        document = Document(model, now, msgspec.convert(list(messages), tuple[Message, ...]))
        text = msgspec.json.format(msgspec.json.encode(document), indent=1)
        try:
            _private(self.folder)
            _private(self.conversations)
            beside = path.with_suffix(".new")
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(text)
            beside.replace(path)
        except OSError as error:
            raise ClientError(f"{path} cannot be written: {error.strerror}") from None
        return path

    def load(self, name: str) -> list[dict[str, str]]:
        """Return the messages of a conversation. Raises ClientError."""
        path = self._path(name)
        try:
            document = msgspec.json.decode(path.read_bytes(), type=Document)
        except FileNotFoundError:
            raise ClientError(no_such("conversation", name, self.names())) from None
        except OSError as error:
            raise ClientError(f"{path} cannot be read: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise ClientError(f"{path} holds no conversation: {error}") from None
        return [{"role": message.role, "content": message.content} for message in document.messages]

    def history(self) -> Path | None:
        """Return the file of the prompt's history, made if there was none; None if it cannot be written."""
        path = self.folder / "history"
        try:
            _private(self.folder)
            path.touch(mode=0o600)
        except OSError:
            return None
        return path

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ClientError(f"{name!r} is no name: up to 64 letters, digits, '.', '_' and '-'")
        return self.conversations / f"{name}{SUFFIX}"


def _private(folder: Path) -> Path:
    """Make a folder that only this user may enter; leave one that exists as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
