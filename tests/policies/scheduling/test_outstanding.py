"""Outstanding work of an engine's sessions."""

from __future__ import annotations

from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.outstanding import Outstanding, outstanding
from tests.policies.scheduling.views import SessionData


def reading(rate: float, tokens: int = 0) -> Reader:
    """Return a reader who got `tokens` tokens at second 0."""
    reader = Reader(rate)
    reader.deliver(tokens, 0.0)
    return reader


def test_nobody_wants_nothing() -> None:
    assert outstanding([], 1.0) == Outstanding()


def test_everybody_counts_once() -> None:
    sessions = [
        SessionData(1, reader=reading(10.0, 20)),  # read until second 2
        SessionData(2, reader=reading(5.0, 5), missing=30),  # until second 1
        SessionData(3, admitted=False, received=0, missing=40),  # waits for a place, and has not begun
        SessionData(4, wanting=False, missing=7),  # its client is to ask
    ]
    work = outstanding(sessions, 1.5)
    assert work.backlog == 70
    assert work.reading == 35.0
    assert work.starving == 1
    assert work.awaited == sessions[2].reach(1)


def test_one_that_has_given_way_is_behind_by_what_it_lost() -> None:
    work = outstanding([SessionData(1, admitted=False, missing=60, reader=reading(10.0, 20))], 1.0)
    assert (work.backlog, work.starving, work.awaited) == (60, 0, 61)


def test_nobody_can_ask_for_more_than_an_engine_could_give() -> None:
    """Steps of 0.1 s give a session at most 10 tokens/s: faster readers always wait, and no replica helps."""
    fast, slow = (SessionData(1, reader=reading(rate)) for rate in (10_000.0, 5.0))
    assert outstanding([fast], 1.0, step_s=0.1)[1:3] == (10.0, 0)
    assert outstanding([slow], 1.0, step_s=0.1)[1:3] == (5.0, 1)


def test_what_is_complete_is_no_backlog() -> None:
    """A session between two tokens does not count as negative."""
    assert outstanding([SessionData(1, missing=-1)], 1.0).backlog == 0
