"""The second tier of the KV cache: blocks in host memory, and the copies between the tiers.

On a GPU a copy runs in a stream of its own, over pinned memory. On a CPU both tiers are memory: the copy is made at
once, and counts as done when a link of `bytes_per_s` would have carried it, so that a small machine can stand in
for a large one's bus (emulated time; None: no emulation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.model import KVPool


class Copy(Protocol):
    """A copy that was submitted."""

    @property
    def left_s(self) -> float:
        """Seconds until it is done, as far as known; 0: it is."""
        ...

    def wait(self) -> None:
        """Return when the memory on both sides may be used for something else."""
        ...


@dataclass(frozen=True, slots=True)
class TierSettings:
    """blocks: of host memory. bytes_per_s: of the link, each way. write_through: copy full blocks as they are
    computed, so that giving way later costs next to nothing. overlap: blocks that lie in host memory already are
    given up before the others are copied, and loading does not wait for them.
    """

    blocks: int
    bytes_per_s: float | None = None
    write_through: bool = True
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.blocks < 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise ValueError(
                f"needs blocks ≥ 0 and bytes_per_s > 0, not {self.blocks} and {self.bytes_per_s}"
            )


class HostTier:
    """`settings.blocks` host blocks beside the device's pool. clock: seconds."""

    def __init__(
        self, kv: KVPool, settings: TierSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self._kv = settings, kv
        layers, _, width = kv.blocks.shape
        on_gpu = kv.blocks.is_cuda
        self._host = torch.empty(layers, settings.blocks, width, dtype=kv.blocks.dtype, pin_memory=on_gpu)
        self.block_bytes = layers * width * kv.blocks.element_size()
        self._free = list(range(settings.blocks - 1, -1, -1))
        out, back = (
            (_Stream(), _Stream())
            if on_gpu
            else (_Link(settings.bytes_per_s, clock), _Link(settings.bytes_per_s, clock))
        )
        self._out, self._back = out, back if settings.overlap else out

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

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        """Copy device blocks to host blocks."""
        return self._out.copy(self._kv.blocks, blocks, self._host, hosts, len(blocks) * self.block_bytes)

    def load(self, hosts: Sequence[int], blocks: Sequence[int]) -> Copy:
        """Copy host blocks to device blocks."""
        return self._back.copy(self._host, hosts, self._kv.blocks, blocks, len(blocks) * self.block_bytes)

    @property
    def queue_s(self) -> float:
        """What a load submitted now would wait for."""
        return self._back.queue_s

    @property
    def block_s(self) -> float:
        """Seconds to copy a block, as configured or as measured."""
        return self.block_bytes / self._back.bytes_per_s


class _Link:
    """One direction of an emulated bus: copies follow one another."""

    def __init__(self, bytes_per_s: float | None, clock: Callable[[], float]) -> None:
        self.bytes_per_s, self._clock = bytes_per_s or float("inf"), clock
        self._busy_until = 0.0

    def copy(
        self,
        source: torch.Tensor,
        rows: Sequence[int],
        target: torch.Tensor,
        places: Sequence[int],
        size: int,
    ) -> Copy:
        for row, place in zip(rows, places, strict=True):  # far faster than one indexed assignment
            target[:, place].copy_(source[:, row])
        self._busy_until = max(self._busy_until, self._clock()) + size / self.bytes_per_s
        return _Emulated(self._busy_until, self._clock)

    @property
    def queue_s(self) -> float:
        return max(0.0, self._busy_until - self._clock())


class _Emulated:
    def __init__(self, done_at: float, clock: Callable[[], float]) -> None:
        self._done_at, self._clock = done_at, clock

    @property
    def left_s(self) -> float:
        return max(0.0, self._done_at - self._clock())

    def wait(self) -> None:
        """Nothing: the copy itself was made when it was submitted."""


class _Stream:
    """One direction of a GPU's bus: a CUDA stream; its speed is measured on what it has carried."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self.bytes_per_s = 10e9  # of a first guess, until something was carried
        self._under_way: list[tuple[torch.cuda.Event, torch.cuda.Event, int]] = []

    def copy(
        self,
        source: torch.Tensor,
        rows: Sequence[int],
        target: torch.Tensor,
        places: Sequence[int],
        size: int,
    ) -> Copy:
        self._stream.wait_stream(torch.cuda.current_stream())
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begin.record(self._stream)
            for row, place in zip(rows, places, strict=True):
                target[:, place].copy_(source[:, row], non_blocking=True)
            end.record(self._stream)
        self._under_way.append((begin, end, size))
        return _Recorded(end)

    @property
    def queue_s(self) -> float:
        while self._under_way and self._under_way[0][1].query():
            begin, end, size = self._under_way.pop(0)
            seconds = begin.elapsed_time(end) / 1e3
            if seconds > 0:
                self.bytes_per_s += 0.1 * (size / seconds - self.bytes_per_s)
        return sum(size for *_, size in self._under_way) / self.bytes_per_s


class _Recorded:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    @property
    def left_s(self) -> float:
        return 0.0 if self._event.query() else 1e-3

    def wait(self) -> None:
        self._event.synchronize()
