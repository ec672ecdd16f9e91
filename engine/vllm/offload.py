"""Host memory behind vLLM's KV cache, as a scheduling control has to know it: what lies there, and how soon it is back.

vLLM's own offloading connector copies blocks there as they fill, and loads them when a preempted request returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tandem.engine.base import EngineStats
from tandem.engine.vllm.views import leading

if TYPE_CHECKING:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
        GroupOffloadConfig,
        OffloadingConnectorScheduler,
    )
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

FADE = 0.9
"""Weight of all earlier copies in the measured time of one, step by step."""


class HostTier:
    """Host memory of vLLM's offloading connector, seen from the scheduler.

    copy_s: seconds to load a token, as measured; infinite until something has been copied.
    """

    def __init__(
        self,
        offloading: OffloadingConnectorScheduler,
        group: GroupOffloadConfig,
        token_bytes: float,
        stats: EngineStats,
    ) -> None:
        """group: of the KV cache, all of which it is; token_bytes: of it that one worker holds of a token."""
        from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

        self._lookup, self._miss = offloading.manager.lookup, LookupResult.MISS
        self._context, self._key = ReqContext, make_offload_key
        self._group, self._token_bytes = group, token_bytes
        self._stats = stats
        self._bytes = self._seconds = 0.0  # of copies in either direction: a bus is as quick in both
        self._loading: dict[int, int] = {}  # tokens of each load under way
        self.copy_s = float("inf")

    @property
    def copy_queue_s(self) -> float:
        """Seconds until the loads under way are done."""
        return sum(self._loading.values()) * self.copy_s if self._loading else 0.0

    def stored(self, request: Request, before: int) -> tuple[int, int]:
        """Return how many leading chunks of a request lie in host memory, or are on their way there, and their tokens;
        before: when last asked."""
        group, hashes, every = self._group, request.block_hashes, self._group.hashes_per_chunk
        context = self._context(request.request_id)

        def there(chunk: int) -> bool:
            key = self._key(hashes[(chunk + 1) * every - 1], group.group_idx)
            return self._lookup(key, context) is not self._miss

        found = leading(len(hashes) // every, before, there)
        return found, found * group.tokens_per_chunk

    def begun(self, copies: OffloadingConnectorMetadata) -> None:
        """Note the copies that begin with a step."""
        for job, load in copies.load_jobs.items():
            tokens = len(load.src_spec.block_ids) * self._group.tokens_per_chunk
            self._loading[job] = tokens
            self._stats.tokens_loaded += tokens
        for store in copies.store_jobs.values():
            self._stats.blocks_written += len(store.src_spec.block_ids)

    def ended(self, output: KVConnectorOutput) -> None:
        """Note the copies that have ended, and the time they took."""
        if (done := output.kv_connector_worker_meta) is None:
            return
        for job in done.completed_jobs:
            self._loading.pop(job, None)
        took = done.transfer_stats
        if size := took.load.bytes + took.store.bytes:
            self._bytes = FADE * self._bytes + size
            self._seconds = FADE * self._seconds + took.load.time + took.store.time
            self.copy_s = self._seconds / self._bytes * self._token_bytes


def host_tier(connector: Any, settings: Any, memory: Any, stats: EngineStats) -> HostTier | None:
    """Return the host memory behind a connector of vLLM's.

    None without vLLM's own offloading to host memory alone, or where the KV cache is of several kinds: what another
    connector keeps, only that knows; the control then reckons with computing it again.
    settings: vLLM's configuration; memory: the shape of its KV cache (KVCacheConfig); stats: counts are added there.
    """
    if connector is None:
        return None
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    if not isinstance(connector, OffloadingConnector):
        return None
    offloading = connector.scheduler
    groups = offloading.config.kv_group_configs
    if len(groups) > 1 or groups[0].sliding_window_size_in_chunks is not None:
        return None
    if not isinstance(offloading.manager, CPUOffloadingManager):  # looking up would fetch from further away
        return None
    block_bytes = build_offloading_config(settings, memory).worker_kv_bytes_per_block
    return HostTier(offloading, groups[0], block_bytes / groups[0].tokens_per_block, stats)
