"""vLLM's offloading to host memory in virtual time: its bookkeeping, over a bus that takes time and moves no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput

from tandem.engine.config import HostMemory
from tandem.engine.core.host_memory import Copy, EmulatedBus


class EmulatedCopies(OffloadingWorker):
    """Copies of blocks over an emulated bus.

    held_s: seconds for which the next step waits for copies whose blocks it uses.
    """

    def __init__(self, block_bytes: float, copy_mb_per_s: float, clock: Callable[[], float]) -> None:
        self._bus = EmulatedBus(block_bytes, HostMemory(copy_mb_per_s=copy_mb_per_s), clock)
        self._block_bytes = block_bytes
        self._copies: dict[int, tuple[Copy, int]] = {}  # and the number of blocks
        self.held_s = 0.0

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        blocks = list(src_spec.block_ids)
        self._copies[job_id] = self._bus.save(blocks, blocks), len(blocks)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        blocks = list(dst_spec.block_ids)
        self._copies[job_id] = self._bus.load(blocks, blocks), len(blocks)
        return True

    def wait(self, job_ids: set[int]) -> None:
        self.held_s = max(
            [self.held_s, *(self._copies[job][0].left_s for job in job_ids if job in self._copies)]
        )

    def get_finished(self) -> list[TransferResult]:
        done = [job for job, (copy, _) in self._copies.items() if copy.left_s <= 0]
        return [self._result(job) for job in done]

    def _result(self, job: int) -> TransferResult:
        _, blocks = self._copies.pop(job)
        size = int(blocks * self._block_bytes)
        return TransferResult(job, True, transfer_size=size, transfer_time=blocks * self._bus.block_s)


class TimedOffloading:
    """The worker's half of vLLM's offloading connector, step by step."""

    def __init__(self, settings: Any, memory: Any, copy_mb_per_s: float, clock: Callable[[], float]) -> None:
        """settings: vLLM's configuration; memory: the shape of its KV cache (KVCacheConfig)."""
        config = build_offloading_config(settings, memory)
        self.copies = EmulatedCopies(config.worker_kv_bytes_per_block, copy_mb_per_s, clock)
        spec = OffloadingSpecFactory.create_spec(config)
        self._worker = OffloadingConnectorWorker(spec, settings, memory)
        self._worker.worker = self.copies

    def begin(self, work: SchedulerOutput) -> float:
        """Begin the copies of a step; return the seconds for which it waits for earlier ones."""
        worker, metadata = self._worker, work.kv_connector_metadata
        worker.handle_preemptions(metadata)
        worker.start_kv_transfers(metadata)
        worker.prepare_store_kv(metadata)
        held_s, self.copies.held_s = self.copies.held_s, 0.0
        return held_s

    def end(self) -> KVConnectorOutput:
        """Return what has been copied since the step before."""
        _, loaded = self._worker.get_finished(set())
        return KVConnectorOutput(
            finished_recving=loaded, kv_connector_worker_meta=self._worker.build_connector_worker_meta()
        )
