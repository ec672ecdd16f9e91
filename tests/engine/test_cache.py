"""The place of the cache folder."""

from pathlib import Path

import pytest

from tandem.engine import cache


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.folder() == Path("/caches/tandem")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/of")
    assert cache.folder() == Path("/home/of/.cache/tandem")
