"""vLLM's requests and memory as a scheduling control sees them (`policies.scheduling.control`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tandem.engine.base import DraftProbs, Drafts
from tandem.engine.served import Stay
from tandem.policies.reader.quality import Reader
from tandem.policies.scheduling.control import REFERENCE_RATE
from tandem.policies.speculation.lookup import PromptLookup

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

    from tandem.engine.vllm.offload import HostTier

REPLAYED = "tandem_replayed"
"""Among a request's `extra_args`: output tokens that it begins with, which penalties have to count."""
GRAMMAR = "tandem_grammar"
"""Among a request's `extra_args`: its grammar's fields, and the tokens that end its output."""
CHOSEN_BY = "tandem_chosen_by"
"""Among a request's `extra_args`: fields of vLLM's SamplingParams that it refuses where it speculates."""
FOREVER = 2**62
"""More tokens than any output has."""

DRAWN = "tandem_drawn"
"""Attribute of a SchedulerOutput: what clients' drafts were drawn from (DraftProbs, or None), by request."""

Ask = tuple[str, int, int, Sequence[int], DraftProbs | None]
"""A request, the output tokens from which on it is parked, and drafts with the output's length that they follow and the
distributions that they were drawn from."""


class Label(NamedTuple):
    """Label of a session for the scheduler, in the request's `extra_args`.

    number: order of opening.
    reader_rate: tokens/s; 0 without a reader.
    before: output tokens that the request was opened with.
    waited_s: see Sampling.
    """

    number: int
    reader_rate: float
    before: int
    waited_s: float = 0.0


class RequestView:
    """One request of vLLM's: a session with work, or one that is parked until its client asks on.

    made: output tokens of its own.
    until: of them, from which on it is parked.
    drafts: to be verified with its next step.
    parked_s: since when it has been.
    lookup: finds drafts in its own text; None if the engine looks up nothing.
    stay: what the engine's metrics tell of it.
    """

    def __init__(
        self,
        request: Request,
        label: Label,
        memory: VllmMemory,
        now_s: float,
        lookup: PromptLookup | None = None,
    ) -> None:
        self.lookup = lookup
        self.request, self._before, self._memory = request, label.before, memory
        self._replayed = request.num_output_tokens  # vLLM counts the others as its prompt
        self.number = self.rank = label.number
        self.opened_s, self.parked_s = now_s - label.waited_s, now_s
        self.reader = Reader(label.reader_rate or REFERENCE_RATE)
        self.fresh, self.paused = True, False
        self.stay = Stay()
        self.until, self.drafts = 1, Drafts([])
        self._cached_blocks = self._host_chunks = 0  # when last looked at

    @property
    def made(self) -> int:
        return int(self.request.num_output_tokens) - self._replayed

    @property
    def wanting(self) -> bool:
        # where vLLM schedules ahead, tokens of running steps
        in_flight: int = self.request.num_output_placeholders
        return self.made + in_flight < self.until

    @property
    def runs(self) -> bool:
        """Whether it may take part in the next step."""
        return self.wanting and not self.paused

    @property
    def running(self) -> bool:
        """Whether vLLM lets it take part in steps."""
        return bool(self.request.status.name == "RUNNING")

    @property
    def _loading(self) -> bool:
        """Whether its KV cache is on its way from elsewhere, into blocks that it holds."""
        return bool(self.request.status.name == "WAITING_FOR_REMOTE_KVS")

    @property
    def admitted(self) -> bool:
        return self.running or self._loading or self.request.num_computed_tokens > 0

    @property
    def received(self) -> int:
        return self._before + self.made

    @property
    def longest(self) -> int:
        return self._before + int(self.request.max_tokens) - self._replayed

    @property
    def missing(self) -> int:
        request = self.request
        if self.admitted and not self._loading:  # else what comes counts as computed already
            return max(0, request.num_tokens - 1 - request.num_computed_tokens)
        return request.num_tokens - self._cached

    @property
    def stored(self) -> int:
        if self.running or (tier := self._memory.tier) is None:
            return 0
        self._host_chunks, tokens = tier.stored(self.request, self._host_chunks)
        return max(0, min(tokens, self.request.num_tokens - 1) - self._cached)

    @property
    def _cached(self) -> int:
        """Leading tokens that the prefix cache has."""
        self._cached_blocks, tokens = self._memory.cached(self.request, self._cached_blocks)
        return min(tokens, self.request.num_tokens - 1)

    def reach(self, more: int) -> int:
        request = self.request
        return min(request.num_tokens + more, request.num_prompt_tokens + request.max_tokens)


class VllmMemory:
    """vLLM's KV cache. What a session loses it computes again, but for what the prefix cache or host memory has."""

    def __init__(self, manager: KVCacheManager, block_size: int, places: int, tier: HostTier | None) -> None:
        """tier: host memory; None if there is none."""
        self._pool, self.tier = manager.block_pool, tier
        self.block_size, self.places = block_size, places
        self.capacity = (self._pool.num_gpu_blocks - 1) * block_size  # block 0 is vLLM's own

    @property
    def copy_s(self) -> float:
        """Seconds to load a token from host memory; infinite without it."""
        return float("inf") if self.tier is None else self.tier.copy_s

    @property
    def copy_queue_s(self) -> float:
        """Seconds until the loads under way are done."""
        return 0.0 if self.tier is None else self.tier.copy_queue_s

    @property
    def free_blocks(self) -> int:
        """Number of free blocks, cached ones included."""
        return int(self._pool.get_num_free_blocks())

    def blocks(self, tokens: int) -> int:
        """Return the number of blocks for `tokens` tokens."""
        return -(-tokens // self.block_size)

    def cached(self, request: Request, before: int) -> tuple[int, int]:
        """Return how many leading blocks the prefix cache has of a request, and their tokens; before: see `leading`."""
        hashes, cached = request.block_hashes, self._pool.get_cached_block
        found = leading(len(hashes), before, lambda block: cached(hashes[block], [0]) is not None)
        return found, found * self.block_size


def leading(count: int, before: int, there: Callable[[int], bool]) -> int:
    """Return how many of `count` blocks are there from the first one on, looking around `before`, the number of last
    time: blocks come and go at the end, as caches drop the end of a text first."""
    found = min(before, count)
    while found and not there(found - 1):
        found -= 1
    while found < count and there(found):
        found += 1
    return found
