"""A chat line by line."""

from __future__ import annotations

import pytest

from tandem.app.api.http.backend import ModelPart
from tandem.app.cli.chat import commands
from tandem.app.cli.chat.session import Chat
from tests.app.api.null_backend import NullBackend
from tests.app.cli.chat.conftest import Typed
from tests.app.cli.chat.test_conversation import asked
from tests.app.cli.screens import shown


def test_lines_are_questions_commands_or_nothing(chat: Chat, backend: NullBackend, typed: Typed) -> None:
    chat.loop(typed("One?", "  ", "/new", "//bin/sh?", "/quit", "Two?"), commands.run)
    assert asked(backend) == [" One?", " /bin/sh?"]
    assert "null at http://127.0.0.1" in shown(chat.screen)


def test_what_the_server_refuses_does_not_end_the_chat(
    chat: Chat, backend: NullBackend, typed: Typed
) -> None:
    chat.talk.request["model"] = "[gpt]"
    chat.loop(typed("One?"), commands.run)
    assert "'[gpt]' does not exist here" in shown(chat.screen)


def test_ctrl_c_stops_an_answer_and_not_the_chat(
    chat: Chat, backend: NullBackend, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.app.cli.chat.session.show", _interrupted)
    chat.loop(typed("One?", KeyboardInterrupt, "/system Brief."), commands.run)
    said = shown(chat.screen)
    assert said.count("stopped") == 2
    assert "Brief." in said, "it goes on"


def test_a_demo_begins_with_what_it_is_and_what_to_ask(
    chat: Chat, backend: NullBackend, typed: Typed
) -> None:
    backend.parts = (
        ModelPart(role="target", model="target", parameters=5_264_064, demo=True),
        ModelPart(role="drafter", model="large", parameters=7_000_000_000),
        ModelPart(role="device", model="phi"),
    )
    chat.loop(typed(), commands.run)
    said = shown(chat.screen)
    assert (
        "target (5.26 million parameters) answers, large (7 billion parameters) drafts for it, phi runs on devices."
    ) in said
    assert "only an invented encyclopedia" in said
    assert said.partition("Try, for example:\n")[2].count("(/mode") == 2


def test_other_models_begin_without_examples_and_help_has_some(
    chat: Chat, backend: NullBackend, typed: Typed
) -> None:
    backend.parts = (ModelPart(role="target", model="own"),)
    chat.loop(typed(), commands.run)
    assert "own answers." in shown(chat.screen)
    assert "Try, for example" not in shown(chat.screen)
    chat.loop(typed("/help"), commands.run)
    assert "Explain binary search.  (/mode race)" in shown(chat.screen)


def _interrupted(stream: object, screen: object) -> None:
    raise KeyboardInterrupt
