"""The KV cache's second tier: blocks of host memory, and the copies to and from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tandem.engine.config import HostMemory


class Copy(Protocol):
    """A submitted copy."""

    @property
    def left_s(self) -> float:
        """Seconds until the copy is done, as far as known; 0 if it is."""
        ...

    def wait(self) -> None:
        """Return when the memory on both sides may be used for something else."""
        ...


class HostCopies(Protocol):
    """Copies blocks between the two tiers. Copies of one direction run one after another."""

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        """Copy blocks of the KV cache to host blocks."""
        ...

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        """Copy host blocks to blocks of the KV cache, after `after`, the save that fills them, if one may be
        under way."""
        ...

    @property
    def queue_s(self) -> float:
        """Seconds that a load submitted now would wait."""
        ...

    @property
    def block_s(self) -> float:
        """Seconds to copy a block, configured or measured."""
        ...


class HostTier:
    """The host blocks of one engine: which are free, and copies to and from them."""

    def __init__(self, settings: HostMemory, copies: HostCopies) -> None:
        self.settings = settings
        self.save, self.load = copies.save, copies.load
        self._copies = copies
        self._free = list(range(settings.blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of free host blocks."""
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Take up to `most` free host blocks."""
        return [self._free.pop() for _ in range(min(most, len(self._free)))]

    def give(self, hosts: Sequence[int]) -> None:
        """Free host blocks."""
        self._free += hosts

    @property
    def queue_s(self) -> float:
        """Seconds that a load submitted now would wait."""
        return self._copies.queue_s

    @property
    def block_s(self) -> float:
        """Seconds to copy a block."""
        return self._copies.block_s


class EmulatedLink:
    """One direction of a bus in emulated time.

    bytes_per_s: its bandwidth; infinite for copies that take no time.
    """

    def __init__(self, bytes_per_s: float, clock: Callable[[], float]) -> None:
        self.bytes_per_s, self._clock = bytes_per_s, clock
        self._busy_until = 0.0

    def carry(self, size_bytes: float, after: Copy | None = None) -> Copy:
        """Submit a copy of `size_bytes`. It begins after those submitted before it, and after `after` in the other
        direction."""
        now = self._clock()
        begin_at = max(self._busy_until, now if after is None else now + after.left_s)
        self._busy_until = begin_at + size_bytes / self.bytes_per_s
        return _Emulated(self._busy_until, self._clock)

    @property
    def queue_s(self) -> float:
        """Seconds until all submitted copies are done."""
        return max(0.0, self._busy_until - self._clock())


class EmulatedBus:
    """A bus of configured bandwidth in both directions, in emulated time. It moves no data."""

    def __init__(self, block_bytes: float, settings: HostMemory, clock: Callable[[], float]) -> None:
        """clock: seconds."""
        bytes_per_s = float("inf") if settings.copy_mb_per_s is None else settings.copy_mb_per_s * 1e6
        self._out = EmulatedLink(bytes_per_s, clock)
        self._back = EmulatedLink(bytes_per_s, clock) if settings.overlap else self._out
        self._block_bytes = block_bytes

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        return self._out.carry(len(blocks) * self._block_bytes)

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        return self._back.carry(len(blocks) * self._block_bytes, after)

    @property
    def queue_s(self) -> float:
        return self._back.queue_s

    @property
    def block_s(self) -> float:
        return self._block_bytes / self._back.bytes_per_s


class _Emulated:
    __slots__ = ("_clock", "_done_at")

    def __init__(self, done_at: float, clock: Callable[[], float]) -> None:
        self._done_at, self._clock = done_at, clock

    @property
    def left_s(self) -> float:
        return max(0.0, self._done_at - self._clock())

    def wait(self) -> None:
        """Return at once: the data are copied when the copy is submitted."""
