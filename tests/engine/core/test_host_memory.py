"""Host memory's books, and the bus that carries copies in emulated time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import Copy, EmulatedLink, HostTier


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NoCopies:
    """Notes what is asked of it."""

    queue_s, block_s = 0.5, 0.25

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int], list[int]]] = []
        self._link = EmulatedLink(1.0, lambda: 0.0)

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        self.asked.append(("save", list(blocks), list(hosts)))
        return self._link.carry(1)

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        self.asked.append(("load", list(hosts), list(blocks)))
        return self._link.carry(1, after)


# -- the books ------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.integers(0, 9), st.just("give")), max_size=40))
def test_every_block_is_free_or_taken_once(turns: list[int | str]) -> None:
    tier = HostTier(HostMemory(blocks=12), NoCopies())
    taken: list[list[int]] = []
    for turn in turns:
        if turn == "give":
            tier.give(taken.pop(0) if taken else [])
        else:
            before, most = tier.free, int(turn)
            got = tier.take(most)
            assert len(got) == min(most, before), "as many as there are"
            taken.append(got)
        held = [block for blocks in taken for block in blocks]
        assert len(set(held)) == len(held) == 12 - tier.free
        assert set(held) <= set(range(12))


def test_copies_and_what_they_take_are_the_runners() -> None:
    copies = NoCopies()
    tier = HostTier(HostMemory(blocks=2), copies)
    tier.load([1], [5], tier.save([4, 5], [0, 1]))
    assert copies.asked == [("save", [4, 5], [0, 1]), ("load", [1], [5])]
    assert (tier.queue_s, tier.block_s) == (0.5, 0.25)


# -- the emulated link ----------------------------------------------------------------------------------


def test_copies_of_one_direction_follow_one_another() -> None:
    clock = Clock()
    link = EmulatedLink(100.0, clock)
    first, second = link.carry(50), link.carry(100)
    assert (first.left_s, second.left_s, link.queue_s) == (0.5, 1.5, 1.5)
    clock.now = 1.0
    assert (first.left_s, second.left_s, link.queue_s) == (0.0, 0.5, 0.5)
    clock.now = 9.0
    assert link.queue_s == 0.0
    assert link.carry(100).left_s == 1.0, "what the link did not carry while it was idle is not made up for"


def test_a_copy_may_wait_for_one_of_the_other_direction() -> None:
    clock = Clock()
    out, back = EmulatedLink(100.0, clock), EmulatedLink(100.0, clock)
    saving = out.carry(300)
    assert back.carry(100, saving).left_s == 4.0
    assert back.carry(100).left_s == 5.0, "the link is kept waiting"
    clock.now = 10.0
    assert back.carry(100, saving).left_s == pytest.approx(1.0), "it was done long ago"


def test_an_infinite_link_takes_no_time() -> None:
    link = EmulatedLink(float("inf"), Clock())
    assert (link.carry(1e12).left_s, link.queue_s) == (0.0, 0.0)
