"""Conversations on disk."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_IMODE

import pytest

from tandem.app.cli.chat.store import Store
from tandem.app.client.http import ClientError

SAID = [{"role": "user", "content": "Zürich? 🗼"}, {"role": "assistant", "content": "Yes.\nA town."}]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "share" / "tandem")


def test_what_is_saved_is_loaded(store: Store) -> None:
    assert store.names() == []
    store.save("a.b-1", "null", SAID)
    store.save("other", "null", SAID[:1])
    os.utime(store.conversations / "a.b-1.json", (1, 1))
    assert (store.load("a.b-1"), store.load("other")) == (SAID, SAID[:1])
    assert store.names() == ["other", "a.b-1"], "the one saved last first"
    store.save("other", "null", SAID)
    assert store.load("other") == SAID
    assert len(list(store.conversations.iterdir())) == 2, "nothing unfinished is left"


def test_only_the_user_can_read_it(store: Store) -> None:
    path = store.save("mine", "null", SAID)
    history = store.history()
    assert history is not None
    for made, mode in ((path, 0o600), (history, 0o600), (path.parent, 0o700), (store.folder, 0o700)):
        assert S_IMODE(made.stat().st_mode) == mode


def test_it_is_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Store().folder == tmp_path / "tandem"


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", ".hidden", "a" * 65, "a\nb", "é"])
def test_a_name_is_no_path(store: Store, name: str) -> None:
    for use in (lambda: store.load(name), lambda: store.save(name, "null", SAID)):
        with pytest.raises(ClientError, match="no name"):
            use()
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"kind": "other", "model": "m", "saved": "", "messages": []}',
        b'{"kind": "tandem conversation", "model": "m", "saved": "", "messages": [{"role": "cat", "content": ""}]}',
        b'{"kind": "tandem conversation", "model": "m", "saved": "", "messages": [{"role": "user"}]}',
    ],
)
def test_a_file_of_another_kind_is_refused(store: Store, content: bytes) -> None:
    store.save("odd", "null", SAID).write_bytes(content)
    with pytest.raises(ClientError, match="holds no conversation"):
        store.load("odd")


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    with pytest.raises(ClientError, match="cannot be written"):
        store.save("x", "null", SAID)
    with pytest.raises(ClientError, match="cannot be read|no such"):
        store.load("x")
    assert store.history() is None
