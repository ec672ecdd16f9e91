"""The KV cache's second tier: which blocks of host memory hold what, and when copies are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tandem.engine.config import HostMemory


class Copy(Protocol):
    """A copy that was submitted."""

    @property
    def left_s(self) -> float:
        """Seconds until it is done, as far as known; 0: it is."""
        ...

    def wait(self) -> None:
        """Return when the memory on both sides may be used for something else."""
        ...


class HostCopies(Protocol):
    """Copies blocks between the two tiers, those of one direction after one another."""

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        """Copy blocks of the KV cache to host blocks."""
        ...

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        """Copy host blocks to blocks of the KV cache; after: the save that fills them, if it may be under way."""
        ...

    @property
    def queue_s(self) -> float:
        """Seconds that a load submitted now would wait for."""
        ...

    @property
    def block_s(self) -> float:
        """Seconds to copy a block, as configured or as measured."""
        ...


class HostTier:
    """The host blocks of one engine, free ones and those in use."""

    def __init__(self, settings: HostMemory, copies: HostCopies) -> None:
        self.settings = settings
        self.save, self.load = copies.save, copies.load
        self._copies = copies
        self._free = list(range(settings.blocks - 1, -1, -1))

    @property
    def free(self) -> int:
        """Host blocks that hold nothing."""
        return len(self._free)

    def take(self, most: int) -> list[int]:
        """Up to `most` free host blocks."""
        return [self._free.pop() for _ in range(min(most, len(self._free)))]

    def give(self, hosts: Sequence[int]) -> None:
        """These host blocks hold nothing of worth any more."""
        self._free += hosts

    @property
    def queue_s(self) -> float:
        """Seconds that a load submitted now would wait for."""
        return self._copies.queue_s

    @property
    def block_s(self) -> float:
        """Seconds to copy a block."""
        return self._copies.block_s


class EmulatedLink:
    """One direction of a bus that carries so many bytes/s, in emulated time; infinite: copies take no time."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float]) -> None:
        self.bytes_per_s, self._clock = bytes_per_s, clock
        self._busy_until = 0.0

    def carry(self, size_bytes: float, after: Copy | None = None) -> Copy:
        """A copy of that size, after those submitted before it; after: one of the other direction to wait for."""
        now = self._clock()
        begin_at = max(self._busy_until, now if after is None else now + after.left_s)
        self._busy_until = begin_at + size_bytes / self.bytes_per_s
        return _Emulated(self._busy_until, self._clock)

    @property
    def queue_s(self) -> float:
        """Seconds until all copies submitted so far are done."""
        return max(0.0, self._busy_until - self._clock())


class EmulatedBus:
    """Both directions of a bus, as configured, in emulated time. It moves no data."""

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
        """Nothing: the data are copied when the copy is submitted."""
