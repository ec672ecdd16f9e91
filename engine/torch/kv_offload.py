"""Copies of the KV cache's blocks to host memory and back.

On a GPU a copy runs in a stream of its own, over pinned memory. On a CPU both tiers are memory: the copy is made at
once, and counts as done when a link of `copy_mb_per_s` would have carried it, so that a small machine can stand in
for a large one's bus (emulated time; null: no emulation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import Copy, EmulatedBus, HostCopies
from tandem.engine.torch.model import KVPool


def tensor_copies(kv: KVPool, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
    """`settings.blocks` host blocks beside the device's pool. clock: seconds."""
    return GPUCopies(kv, settings) if kv.blocks.is_cuda else CPUCopies(kv, settings, clock)


class CPUCopies(EmulatedBus):
    """Copies that are made when they are submitted, over an emulated bus."""

    def __init__(self, kv: KVPool, settings: HostMemory, clock: Callable[[], float]) -> None:
        super().__init__(_block_bytes(kv), settings, clock)
        self._blocks, self.host = _by_block(kv), _host_blocks(kv, settings.blocks)

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        _move(self._blocks, blocks, self.host, hosts)
        return super().save(blocks, hosts)

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        _move(self.host, hosts, self._blocks, blocks)
        return super().load(hosts, blocks, after)


class GPUCopies:
    """Copies in CUDA streams, over pinned memory."""

    def __init__(self, kv: KVPool, settings: HostMemory) -> None:
        device = kv.blocks.device
        self._blocks, self.host = _by_block(kv), _host_blocks(kv, settings.blocks)
        self._block_bytes = _block_bytes(kv)
        self._out = _Stream(device)
        self._back = _Stream(device) if settings.overlap else self._out

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        with self._out.copying(len(blocks) * self._block_bytes) as copy:
            _move(self._blocks, blocks, self.host, hosts)
        return copy

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        with self._back.copying(len(blocks) * self._block_bytes, after) as copy:
            _move(self.host, hosts, self._blocks, blocks)
        return copy

    @property
    def queue_s(self) -> float:
        return self._back.queue_s

    @property
    def block_s(self) -> float:
        return self._block_bytes / self._back.bytes_per_s


def _by_block(kv: KVPool) -> torch.Tensor:
    """Return a view of the pool by block: [num_blocks, layers, width]."""
    return kv.blocks.transpose(0, 1)


def _host_blocks(kv: KVPool, count: int) -> torch.Tensor:
    """Return host memory [count, layers, width]. A block lies in one piece, so that the bus carries it in one copy,
    which the engine's thread need not wait for; the GPU gathers its layers."""
    layers, _, width = kv.blocks.shape
    return torch.empty(count, layers, width, dtype=kv.blocks.dtype, pin_memory=kv.blocks.is_cuda)


def _block_bytes(kv: KVPool) -> int:
    layers, _, width = kv.blocks.shape
    return layers * width * kv.blocks.element_size()


def _move(source: torch.Tensor, rows: Sequence[int], target: torch.Tensor, places: Sequence[int]) -> None:
    for row, place in zip(rows, places, strict=True):  # far faster than one indexed assignment
        target[place].copy_(source[row], non_blocking=True)


class _Stream:
    """One direction of a GPU's bus: a CUDA stream, whose speed is measured on its copies."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self.bytes_per_s = 10e9  # of a first guess, until something was carried
        self._under_way: list[tuple[torch.cuda.Event, torch.cuda.Event, int]] = []

    @contextmanager
    def copying(self, size_bytes: int, after: Copy | None = None) -> Iterator[Copy]:
        """Group the copies of the block into one copy in this stream; after: one of the other direction to wait
        for."""
        self._measure()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        if isinstance(after, _Recorded):
            self._stream.wait_event(after.event)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begin.record(self._stream)
            yield _Recorded(end)
            end.record(self._stream)
        self._under_way.append((begin, end, size_bytes))

    @property
    def queue_s(self) -> float:
        self._measure()
        return sum(size for *_, size in self._under_way) / self.bytes_per_s

    def _measure(self) -> None:
        """The speed, on the copies that are done."""
        while self._under_way and self._under_way[0][1].query():
            begin, end, size = self._under_way.pop(0)
            seconds = begin.elapsed_time(end) / 1e3
            if seconds > 0:
                self.bytes_per_s += 0.1 * (size / seconds - self.bytes_per_s)


class _Recorded:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    @property
    def left_s(self) -> float:
        return 0.0 if self.event.query() else 1e-3

    def wait(self) -> None:
        self.event.synchronize()
