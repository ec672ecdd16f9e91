"""A note says in one way that Ray's store is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import RayError
from ray.experimental import internal_kv

from tandem.cluster.note import Note, NoteError


@pytest.mark.parametrize("call", [Note.read, Note.clear, lambda note: note.write(b"")])
def test_a_store_that_is_away(call: Callable[[Note], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise RayError("unavailable")

    for name in ("get", "put", "del"):
        monkeypatch.setattr(internal_kv, f"_internal_kv_{name}", away)
    with pytest.raises(NoteError, match="unavailable"):
        call(Note("here"))
