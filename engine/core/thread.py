"""A core's steps in a thread of their own: a continuous loop that carries out commands between two steps."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tandem.engine.base import EngineStopped
from tandem.engine.core.engine import Command, Receive
from tandem.engine.core.step import Core

logger = logging.getLogger(__name__)

_Outcome = tuple[Receive, Any]


class ThreadDriver:
    """Drives a core for as long as the process lives, or until `stop`.

    Commands go to the thread in a queue; the outcomes of a step go to the event loop in one call. The loop is called
    once until it comes: asyncio empties the pipe that wakes it until nothing is left, so a thread that writes at every
    short step would keep it there.
    """

    def __init__(self, core: Core, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        """name: of the thread.
        prepare: called in it before anything else.
        """
        self._core, self._name, self._prepare = core, name, prepare
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outcomes: deque[_Outcome] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = False  # the loop, which has not come yet
        self._stopping = False
        self._broke: Receive = _ignore
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, broke: Receive) -> None:
        """Begin. broke: told, on the event loop, of the EngineStopped with which a bug ended the thread."""
        self._broke = broke
        self._thread.start()

    @property
    def running(self) -> bool:
        return not self._stopping and self._thread.is_alive()

    def submit(self, command: Command) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._commands.put(command)

    def deliver(self, receive: Receive, outcome: Any) -> None:
        self._outcomes.append((receive, outcome))

    async def stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._commands.put(lambda: None)
            await asyncio.to_thread(self._thread.join)
        self._broke = _ignore  # it is the engine's, which is to be freed
        self._commands = queue.SimpleQueue()

    def _run(self) -> None:
        self._prepare()
        try:
            while not self._stopping:
                self._drain()
                if not self._core.step():
                    self._flush()
                    self._wait(self._core.idle_s)
                self._flush()
        except Exception as error:
            # A bug: fail loudly and for good rather than serve on from a state nobody knows.
            logger.exception("%s broke down", self._name)
            self._stopping = True
            self.deliver(self._broke, EngineStopped(f"the engine broke down: {error!r}"))
            self._flush()

    def _wait(self, limit_s: float | None) -> None:
        """Carry out the next command, but wait for one no longer than this."""
        try:
            command = self._commands.get(timeout=limit_s)
        except queue.Empty:
            return
        command()

    def _drain(self) -> None:
        """Carry out the commands that are there (not those that come meanwhile: a stream of them must not hold up
        the steps)."""
        for _ in range(self._commands.qsize()):
            self._commands.get_nowait()()

    def _flush(self) -> None:
        """Have the event loop take the outcomes so far."""
        if not self._outcomes or self._called or self._loop is None:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._receive)
        except RuntimeError:  # the loop was closed first: nobody waits any more
            self._stopping = True

    def _receive(self) -> None:
        """On the event loop."""
        self._called = False  # first: what comes from here on is another call's
        for _ in range(len(self._outcomes)):
            receive, outcome = self._outcomes.popleft()
            receive(outcome)


def _ignore(_: object) -> None:
    pass
