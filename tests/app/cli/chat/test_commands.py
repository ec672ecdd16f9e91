"""The commands of a chat."""

from __future__ import annotations

import json

import pytest

from tandem.app.cli.chat.commands import COMMANDS, run
from tandem.app.cli.chat.session import Chat, Quit
from tandem.app.client.http import ClientError
from tandem.deployments.modes import MODES
from tests.app.api.null_backend import NullBackend
from tests.app.cli.chat.test_conversation import stop
from tests.app.cli.screens import shown


def said_by(chat: Chat, line: str) -> str:
    before = len(shown(chat.screen))
    run(chat, line)
    return shown(chat.screen)[before:]


def test_help_names_all_commands_and_how_to_write_several_lines(chat: Chat) -> None:
    said = said_by(chat, "/help")
    assert all(name in said for name in COMMANDS)
    assert all(key in said for key in ("Alt-Enter", "backslash", "Ctrl-C", "Ctrl-D"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/hlp", "/hlp: no such command, did you mean /help?"),
        ("/xyz and more", r"/xyz: no such command \(allowed: /help, "),
        ("/mode clod", "clod: no such mode, did you mean cloud?"),
        ("/device pixel", "pixel: no such device, did you mean pixel-1?"),
        ("/model nul", "nul: no such model, did you mean null?"),
        ("/new now", "/new takes no argument"),
        ("/save", "nothing has been said"),
        ("/load ../x", "no name"),
        ("/load never", "never: no such conversation"),
        ("/stats", "no answer yet"),
    ],
)
def test_what_cannot_be_done_is_told_and_never_sent(
    chat: Chat, backend: NullBackend, line: str, says: str
) -> None:
    before = json.dumps(chat.talk.request)
    with pytest.raises(ClientError, match=says):
        run(chat, line)
    assert (json.dumps(chat.talk.request), backend.jobs) == (before, [])


def test_wishes_count_from_the_next_question_on(chat: Chat, backend: NullBackend) -> None:
    assert "the server's choice" in said_by(chat, "/mode")
    there = said_by(chat, "/mode").partition("(there are: ")[2].partition(";")[0].split(", ")
    assert there == ["auto", *(mode for mode in MODES if mode != "split")], "those that this server serves"
    assert "pixel-1" in said_by(chat, "/device")
    assert said_by(chat, "/mode speculative").strip() == "mode: speculative"
    run(chat, "/device pixel-1")
    run(chat, "/system Be brief.")
    chat.ask("One?")
    for command in ("/mode -", "/device -", "/system -"):
        run(chat, command)
    chat.ask("Two?")
    first, second = backend.jobs
    assert (first.mode, first.device, second.mode, second.device) == ("speculative", "pixel-1", None, None)
    text = backend.tokenizer("null").decode
    assert text(first.prompt).startswith(" Be brief. One?")
    assert text(second.prompt).startswith(" One?")


def test_models(chat: Chat, backend: NullBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_by(chat, "/model").strip() == "model: null (there are: null)"
    chat.talk.request["model"] = "gone"
    with pytest.raises(ClientError, match="'gone' does not exist here; there is 'null'"):
        chat.ask("One?")
    (card,) = backend.models()
    cards = [card.model_copy(update={"aliases": ("gpt",)}), card.model_copy(update={"id": "other"})]
    monkeypatch.setattr(backend, "models", lambda: cards)
    assert said_by(chat, "/model").strip() == "model: gone (there are: null, gpt, other)"
    with pytest.raises(ClientError, match="there are 'null', 'gpt', 'other'"):
        chat.ask("One?")
    for name in ("other", "gpt"):
        run(chat, f"/model {name}")
        assert chat.talk.request["model"] == name
    chat.ask("One?")
    assert backend.jobs[0].model == "null"


def test_where_there_is_no_device_no_table_is_shown(
    chat: Chat, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody() -> list[dict[str, object]]:
        return []

    assert "hardware" in said_by(chat, "/device")
    monkeypatch.setattr(backend, "devices", nobody)
    assert said_by(chat, "/device").startswith("device: the server's choice (there are: any; ")


def test_a_conversation_is_stored_and_gone_on_with(chat: Chat, backend: NullBackend) -> None:
    assert "no conversation in" in said_by(chat, "/load")
    run(chat, "/system Sys.")
    chat.ask("One?")
    said = chat.talk.messages
    assert "saved as first: " in said_by(chat, "/save first")
    chat.ask("Two?")
    run(chat, "/save")
    assert said_by(chat, "/load").strip() == "first", "it is saved under the name that it has"
    run(chat, "/new")
    assert chat.talk.messages == [{"role": "system", "content": "Sys."}]
    assert "5 messages; the last one: " in said_by(chat, "/load first")
    assert chat.talk.messages[: len(said)] == said
    run(chat, "/new")
    run(chat, "/save")
    assert len(chat.store.names()) == 2, "a new one has a name of its own"


def test_figures_of_the_last_answer(chat: Chat) -> None:
    chat.ask("One?")
    assert "2 cloud" in said_by(chat, "/stats")
    stop(chat, "Two?", after=1)
    with pytest.raises(ClientError, match="stopped"):
        run(chat, "/stats")


def test_leaving(chat: Chat) -> None:
    with pytest.raises(Quit):
        run(chat, "/quit")
