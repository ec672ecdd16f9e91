"""Queue of a device's uplink, shared by the requests to its split model: rounds go before prompts, and of these the
shortest remaining one goes first.

A round is a few tokens' hidden states, for which a reader waits; a chunk of a prompt is many times larger, and cannot
be overtaken in flight. So a round is sent at once, and while there are rounds, a chunk waits until the previous frames
have left: a round then finds at most one chunk ahead of it. The time of leaving is estimated from the bandwidth, and
known at the latest when the reply arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tandem.policies.split import DeviceMonitor

SOON_S, LOOK_S = 1e-4, 0.05
"""Seconds: a wait too short to be worth it, and the time between two looks whether a wait is over sooner."""


class Sent(NamedTuple):
    """Hidden states on their way up.

    number: of this upload.
    clear: whether no other request's upload was ahead of it.
    """

    number: int
    clear: bool


class UplinkQueue:
    """Queue of one uplink.

    link: monitor of the device's link.
    """

    def __init__(self, link: DeviceMonitor) -> None:
        self._link = link
        self._prompts: dict[object, int] = {}  # tokens left of those that go up
        self._in_rounds = 0  # requests
        self._sent = 0  # number of uploads
        self._last: object = None  # the last sender
        self._free_s = 0.0  # all will have left by then

    @contextmanager
    def rounds(self) -> Iterator[None]:
        """Mark a request as in its rounds, within the context."""
        self._in_rounds += 1
        try:
            yield
        finally:
            self._in_rounds -= 1

    @contextmanager
    def prompt(self, who: object) -> Iterator[None]:
        """Mark a request as sending its prompt, within the context."""
        try:
            yield
        finally:
            self._prompts.pop(who, None)

    async def turn(self, who: object, left: int) -> None:
        """Return when a request's chunk may go. left: tokens of its prompt that are left after it."""
        self._prompts[who] = left
        while self._waits(left) and (wait_s := self._free_s - _now()) > SOON_S:  # noqa: ASYNC110 (see LOOK_S)
            await asyncio.sleep(min(wait_s, LOOK_S))

    def _waits(self, left: int) -> bool:
        """Whether a chunk waits until the frames before it have left."""
        return self._in_rounds > 0 or any(others < left for others in self._prompts.values())

    def sent(self, who: object, size_bytes: int) -> Sent:
        """Record an upload of `size_bytes` by a request."""
        now_s = _now()
        clear = who is self._last or self._free_s <= now_s + SOON_S
        self._free_s = max(self._free_s, now_s) + size_bytes / self._link.up_bytes_s
        self._sent, self._last = self._sent + 1, who
        return Sent(self._sent, clear)

    def arrived(self, sent: Sent) -> None:
        """Record that an upload was answered, so that it and all before it have left."""
        if sent.number == self._sent:
            self._free_s = min(self._free_s, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
