"""Cache of callers: the router is asked once in a while, not for every request."""

from __future__ import annotations

import asyncio

import pytest

from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.client.caller_cache import KNOWN_S, LATE_S, STALE_S, Callers
from tandem.deployments.access.keys import Caller, Role
from tests.virtual import in_virtual_time, now_s

pytestmark = pytest.mark.virtual_time

CALLER = Caller("key-1", Role.USER, Terms(0.5, 1e-7), keyed=True)


class Router:
    """Knows one hash; counts what it is asked, waits for `go` and fails if told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.known: Caller | None = CALLER
        self.error: Exception | None = None
        self.now_s = 0.0

    async def caller(self, hashed: str | None) -> Caller | None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.known if hashed == "known" else None

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def callers(router: Router) -> Callers:
    return Callers(router.caller, router.clock)


async def test_many_at_once_ask_once(router: Router, callers: Callers) -> None:
    found = await asyncio.gather(*(callers.of("known") for _ in range(20)))
    assert found == [CALLER] * 20
    assert await callers.of("other") is None
    assert await callers.of("other") is None
    assert router.asked == 2


async def test_what_is_known_holds_for_a_moment(router: Router, callers: Callers) -> None:
    await callers.of("known")
    router.known = None
    router.now_s = KNOWN_S - 0.01
    assert await callers.of("known") == CALLER
    router.now_s = KNOWN_S
    assert await callers.of("known") is None


async def test_a_change_here_holds_at_once(router: Router, callers: Callers) -> None:
    await callers.of("known")
    router.known = None
    callers.forget()
    assert await callers.of("known") is None


@in_virtual_time
async def test_a_caller_stays_known_for_a_while_when_nobody_answers() -> None:
    """The first one waits a little; the others, who come later, do not. Keys that nobody has had are not known."""
    away = asyncio.Event()

    async def find(hashed: str | None) -> Caller | None:
        if away.is_set():
            await asyncio.sleep(5.0)
            raise ConnectionError("it is stopped")
        return CALLER if hashed == "known" else None

    callers = Callers(find, asyncio.get_running_loop().time)
    assert await callers.of("known") == CALLER
    assert await callers.of("other") is None
    away.set()
    await asyncio.sleep(KNOWN_S)
    for waits_s in (LATE_S, 0.0):
        began_s = now_s()
        assert await callers.of("known") == CALLER
        assert now_s() - began_s == waits_s
    with pytest.raises(ConnectionError):
        await callers.of("other")
    assert await callers.of("known") == CALLER, "of an answer that failed"
    await asyncio.sleep(STALE_S)
    with pytest.raises(ConnectionError):
        await callers.of("known")
    away.clear()
    assert await callers.of("known") == CALLER


async def test_a_failure_is_not_remembered(router: Router, callers: Callers) -> None:
    router.error = RuntimeError("the router is away")
    with pytest.raises(RuntimeError):
        await callers.of("known")
    router.error = None
    assert await callers.of("known") == CALLER


async def test_one_that_leaves_takes_nobody_along(router: Router, callers: Callers) -> None:
    first = asyncio.create_task(callers.of("known"))
    second = asyncio.create_task(callers.of("known"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == CALLER
    assert router.asked == 1
