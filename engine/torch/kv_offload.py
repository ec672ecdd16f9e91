"""Copies of the KV cache's blocks to host memory and back.

On a GPU a copy runs in a stream of its own, over pinned memory. On a CPU both tiers are memory: the copy is made at
once, and counts as done when a link of `copy_mb_per_s` would have carried it, so that a small machine can stand in
for a large one's bus (emulated time; null: no emulation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.config import HostMemory
from engine.core.host_memory import Copy, EmulatedLink
from engine.torch.model import KVPool


class TensorCopies:
    """`settings.blocks` host blocks beside the device's pool."""

    def __init__(self, kv: KVPool, settings: HostMemory, clock: Callable[[], float]) -> None:
        """clock: seconds."""
        self._kv = kv
        layers, _, width = kv.blocks.shape
        on_gpu = kv.blocks.is_cuda
        self.host = torch.empty(layers, settings.blocks, width, dtype=kv.blocks.dtype, pin_memory=on_gpu)
        self.block_bytes = layers * width * kv.blocks.element_size()
        bytes_per_s = float("inf") if settings.copy_mb_per_s is None else settings.copy_mb_per_s * 1e6
        out, back = (
            (_Stream(kv.blocks.device), _Stream(kv.blocks.device))
            if on_gpu
            else (_MemoryLink(bytes_per_s, clock), _MemoryLink(bytes_per_s, clock))
        )
        self._out, self._back = out, back if settings.overlap else out

    def save(self, blocks: Sequence[int], hosts: Sequence[int]) -> Copy:
        return self._out.copy(self._kv.blocks, blocks, self.host, hosts, len(blocks) * self.block_bytes)

    def load(self, hosts: Sequence[int], blocks: Sequence[int], after: Copy | None = None) -> Copy:
        size = len(blocks) * self.block_bytes
        return self._back.copy(self.host, hosts, self._kv.blocks, blocks, size, after)

    @property
    def queue_s(self) -> float:
        return self._back.queue_s

    @property
    def block_s(self) -> float:
        return self.block_bytes / self._back.bytes_per_s


class _MemoryLink(EmulatedLink):
    """One direction of an emulated bus."""

    def copy(
        self,
        source: torch.Tensor,
        rows: Sequence[int],
        target: torch.Tensor,
        places: Sequence[int],
        size: int,
        after: Copy | None = None,
    ) -> Copy:
        for row, place in zip(rows, places, strict=True):  # far faster than one indexed assignment
            target[:, place].copy_(source[:, row])
        return self.carry(size, after)


class _Stream:
    """One direction of a GPU's bus: a CUDA stream; its speed is measured on what it has carried."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self.bytes_per_s = 10e9  # of a first guess, until something was carried
        self._under_way: list[tuple[torch.cuda.Event, torch.cuda.Event, int]] = []

    def copy(
        self,
        source: torch.Tensor,
        rows: Sequence[int],
        target: torch.Tensor,
        places: Sequence[int],
        size: int,
        after: Copy | None = None,
    ) -> Copy:
        self._measure()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        if isinstance(after, _Recorded):
            self._stream.wait_event(after.event)
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
