"""Responses are kept for a time and within a memory, each for its account."""

from __future__ import annotations

from tandem.deployments.access.kept.responses import KeptResponses, KeptSettings


class Clock:
    """A clock that stands still unless it is set."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_response_is_its_accounts_own() -> None:
    kept = KeptResponses(KeptSettings())
    assert await kept.keep("ann", "r1", b"one")
    assert await kept.get("ann", "r1") == b"one"
    assert await kept.get("bob", "r1") is None
    assert not await kept.drop("bob", "r1")
    assert await kept.drop("ann", "r1")
    assert await kept.get("ann", "r1") is None
    assert not await kept.drop("ann", "r1")


async def test_it_is_forgotten_in_time() -> None:
    clock = Clock()
    kept = KeptResponses(KeptSettings(kept_s=10), clock)
    await kept.keep("ann", "r1", b"one")
    clock.now_s = 5.0
    await kept.keep("ann", "r2", b"two")
    clock.now_s = 10.0
    assert [await kept.get("ann", id) for id in ("r1", "r2")] == [None, b"two"]
    assert not await kept.drop("ann", "r1")


async def test_the_oldest_give_way_to_the_newest() -> None:
    kept = KeptResponses(KeptSettings(kept_bytes=10))
    for number in range(4):
        assert await kept.keep("ann", f"r{number}", b"x" * 4)
    assert [await kept.get("ann", f"r{n}") is not None for n in range(4)] == [False, False, True, True]
    await kept.keep("ann", "r3", b"y" * 6)  # again, larger, in its own place
    assert await kept.get("ann", "r2") == b"x" * 4
    assert not await kept.keep("ann", "r9", b"x" * 11)
    assert await kept.get("ann", "r3") == b"y" * 6


async def test_none_are_kept_where_there_is_no_time() -> None:
    kept = KeptResponses(KeptSettings(kept_s=0))
    assert not await kept.keep("ann", "r1", b"one")
    assert await kept.get("ann", "r1") is None
