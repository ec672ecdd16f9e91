"""A stand-in for a router that does not answer: a front door assigns its requests itself, from what the scheduler says.

It knows nothing of what requests have taught, nor of other front doors' requests, as a router that has just started.
Serve takes half a minute to replace a router that is stopped or hangs, and seconds where it was killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from tandem.deployments.request.assignment import Assignment, RoutingRequest, Unavailable
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.models import ModelRoutings
from tandem.engine.base import EngineError

logger = logging.getLogger("ray.serve")

LATE_S = 0.5
"""Seconds after which a router that has not answered is asked whether it is there: requests may wait for endpoints."""
SIGN_S = 0.7
"""Seconds within which one that is there says so."""
T = TypeVar("T")
Follow = Callable[[Callable[[Snapshot], object]], Coroutine[Any, Any, None]]


class RouterStandIn:
    """Takes the router's place while that does not answer.

    make: makes routings as the router has them.
    follow: passes on what is up, and then every change, until it is cancelled.
    sign: returns when the router answers anything.
    """

    def __init__(
        self,
        make: Callable[[], ModelRoutings],
        follow: Follow,
        sign: Callable[[], Awaitable[object]],
    ) -> None:
        self._make, self._follow, self._sign = make, follow, sign
        self._routings: ModelRoutings | None = None  # there are some while the router is away
        self._watching: asyncio.Task[None] | None = None
        self._away = asyncio.Event()

    async def assign(self, wanted: RoutingRequest, asked: Coroutine[Any, Any, Assignment]) -> Assignment:
        """Return the router's assignment, or one in its place. asked: the router's. Raises as both."""

        async def instead() -> Assignment:
            assert self._routings is not None
            return await self._routings.assign(wanted)

        return await self.answer(asked, instead)

    async def answer(self, asked: Coroutine[Any, Any, T], instead: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the router's answer, or another one in its place. Raises as both."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(asked)
        try:
            await asyncio.wait({task}, timeout=0.0 if self._away.is_set() else LATE_S)
            while not (task.done() or self._away.is_set()):
                if self._watching is None or self._watching.done():
                    self._watching = loop.create_task(self._watch())
                away = loop.create_task(self._away.wait())
                await asyncio.wait({task, away}, timeout=LATE_S + SIGN_S, return_when=asyncio.FIRST_COMPLETED)
                away.cancel()
            if task.done():
                return task.result()
            return await _either(task, loop.create_task(instead()))
        finally:
            task.cancel()

    async def _watch(self) -> None:
        """Return when the router answers; keep routings until then if it does not at once."""
        following = None
        try:
            while not await self._answers():
                if following is None:
                    logger.warning("the router does not answer: requests are assigned here")
                    self._routings = self._make()
                    following = asyncio.get_running_loop().create_task(self._follow(self._routings.see))
                    self._away.set()
        finally:
            self._away.clear()
            if following is not None:
                following.cancel()

    async def _answers(self) -> bool:
        with suppress(Exception):  # whatever it is, there is no router
            async with asyncio.timeout(SIGN_S):
                await self._sign()
                return True
        return False

    def close(self) -> None:
        """Watch the router no more."""
        if self._watching is not None:
            self._watching.cancel()


async def _either(asked: asyncio.Task[T], instead: asyncio.Task[T]) -> T:
    """Return what the router says if it comes back before there is another answer: what waits for endpoints here hears
    of none any more then. Raises as both."""
    try:
        await asyncio.wait({asked, instead}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if not instead.done() and _is_answered(asked) else await instead
    finally:
        instead.cancel()


def _is_answered(asked: asyncio.Task[Any]) -> bool:
    """Return whether the router has said something, be it that it refuses."""
    if asked.cancelled():
        return False
    error = asked.exception()
    return error is None or (isinstance(error, EngineError) and not isinstance(error, Unavailable))
