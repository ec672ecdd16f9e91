"""Copies of resumable streams: one owner each, nothing lost, nothing twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.access.kept import streams
from tandem.deployments.access.kept.streams import Outcome, Said, StreamCopies, StreamNews, StreamRequest
from tandem.deployments.request.tokenlog import Origin

ASKED = StreamRequest("/v1/chat/completions", b"{}", 7)
KEEP_S = 10.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def said(*ids: int, finish: str | None = None) -> Said:
    return Said(list(ids), [Origin.CLOUD] * len(ids), finish)


def news(first: int, *events: bytes, id: str = "a", tokens: Said | None = None, **more: Any) -> StreamNews:
    request = ASKED if first == 0 else None
    return StreamNews("ada", id, first, events, [tokens or said()], request=request, **more)


@given(cuts=st.lists(st.integers(0, 6), max_size=8))
async def test_a_copy_is_what_was_sent(cuts: list[int]) -> None:
    copies, at = StreamCopies(KEEP_S), 0
    for size in [1, *cuts]:
        events = [b"%d" % n for n in range(at, at + size)]
        tokens = said(*range(at, at + size))
        assert await copies.take("one", [news(at, *events, tokens=tokens)]) == [Outcome.KEPT]
        at += size
    assert await copies.take("one", [news(at, b"end", tokens=said(finish="stop"), over=True)]) == [
        Outcome.KEPT
    ]
    copy = await copies.claim("ada", "a", "two")
    assert copy is not None
    assert copy.request == ASKED
    assert copy.events == [*(b"%d" % n for n in range(at)), b"end"]
    assert copy.said == [said(*range(at), finish="stop")]
    assert copy.over


async def test_it_is_its_owners() -> None:
    copies = StreamCopies(KEEP_S)
    await copies.take("one", [news(0, b"x")])
    assert await copies.claim("eve", "a", "two") is None
    assert await copies.claim("ada", "a", "two") is not None
    assert await copies.take("one", [news(1, b"y"), news(0, b"z")]) == [Outcome.MOVED] * 2
    assert await copies.take("two", [news(1, b"y")]) == [Outcome.KEPT]


async def test_what_does_not_follow_is_sent_anew() -> None:
    copies = StreamCopies(KEEP_S)
    assert await copies.take("one", [news(1, b"y")]) == [Outcome.UNKNOWN]
    await copies.take("one", [news(0, b"x")])
    assert await copies.take("one", [news(2, b"z")]) == [Outcome.UNKNOWN]
    await copies.take("one", [news(0, b"x", b"y", b"z")])
    copy = await copies.claim("ada", "a", "one")
    assert copy is not None
    assert copy.events == [b"x", b"y", b"z"]


async def test_time_and_room_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    copies = StreamCopies(KEEP_S, clock)
    await copies.take("one", [news(0, b"x"), news(0, b"x", id="b")])
    clock.now_s = KEEP_S / 2
    await copies.take("one", [news(1, b"y")])
    clock.now_s = KEEP_S
    assert await copies.claim("ada", "b", "one") is None, "it has had no news for so long"
    monkeypatch.setattr(streams, "MOST_BYTES", 10)
    await copies.take("one", [news(0, b"x" * 8, id="c")])
    assert await copies.claim("ada", "a", "one") is None, "the oldest gives way"
    assert await copies.claim("ada", "c", "one") is not None
    await copies.forget([("ada", "c"), ("ada", "d")])
    assert await copies.claim("ada", "c", "one") is None
