"""Runs a core's steps in a thread of their own: a continuous loop that carries out commands between two steps."""

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
    """Drives a core until `stop`.

    Commands go to the thread in a queue. The outcomes of a step go to the event loop in one call, and no further call
    is made until that has run: asyncio empties the pipe that wakes it until nothing is left, so a thread that wrote at
        every short step would keep it there.
    """

    def __init__(self, core: Core, name: str, prepare: Callable[[], None] = lambda: None) -> None:
        """name: the thread's.
        prepare: called in the thread before anything else.
        """
        self._core, self._name, self._prepare = core, name, prepare
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outcomes: deque[_Outcome] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._called = False  # whether the loop was called and has not come yet
        self._stopping = False
        self._broke: Receive = _ignore
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, broke: Receive) -> None:
        """Begin. broke: called on the event loop with EngineStopped if a bug ends the thread."""
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
        self._broke = _ignore  # the engine's method, which would keep the engine
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
            # A bug: fail for good, rather than serve on from a state that is not known.
            logger.exception("%s broke down", self._name)
            self._stopping = True
            self.deliver(self._broke, EngineStopped(f"the engine broke down: {error!r}"))
            self._flush()

    def _wait(self, limit_s: float | None) -> None:
        """Carry out the next command, if one comes within `limit_s`."""
        try:
            command = self._commands.get(timeout=limit_s)
        except queue.Empty:
            return
        command()

    def _drain(self) -> None:
        """Carry out the commands that are there now. Later ones wait: a stream of them must not hold up the steps."""
        for _ in range(self._commands.qsize()):
            self._commands.get_nowait()()

    def _flush(self) -> None:
        """Have the event loop receive the outcomes so far."""
        if not self._outcomes or self._called or self._loop is None:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._receive)
        except RuntimeError:  # the loop was closed first: no client waits any more
            self._stopping = True

    def _receive(self) -> None:
        """Receive the outcomes, on the event loop."""
        self._called = False  # first: outcomes that come from now on need another call
        for _ in range(len(self._outcomes)):
            receive, outcome = self._outcomes.popleft()
            receive(outcome)


def _ignore(_: object) -> None:
    pass
