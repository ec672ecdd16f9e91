"""vLLM in virtual time: its own scheduler with our subclass, its own KV cache and outputs, below the live sessions.

A timer replaces the forward pass, a script its tokens. Only simulations of vLLM import this module: it loads torch,
which no other simulation needs.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tandem.engine.base import EngineInfo, EngineStats, Sampling
from tandem.engine.core.engine import Command
from tandem.engine.vllm.config import VllmConfig, arguments
from tandem.engine.vllm.engine import VllmEngine
from tandem.engine.vllm.outputs import Outputs, RequestOutputs
from tandem.engine.vllm.scheduler import POLL_S, TandemScheduler
from tandem.engine.vllm.session import VllmSession
from tandem.engine.vllm.views import Ask
from tandem.simulator.engines.engine import SHORTEST_WAIT_S, Alarm, Chunk, Compute, step_s
from tandem.simulator.engines.script import EOS, VOCAB_SIZE, VOCABULARY, Script
from tandem.simulator.engines.vllm_offload import TimedOffloading

NO_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": VOCAB_SIZE,  # no limit
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
}
"""A model of which only the shape is read, without limits."""


class HostLink(NamedTuple):
    """An engine's link to host memory.

    token_bytes: of KV cache.
    mb_per_s: bandwidth in each direction, megabytes/s.
    """

    token_bytes: float
    mb_per_s: float


class _Step(NamedTuple):
    """A scheduled step. says: requests that get tokens."""

    work: SchedulerOutput
    says: frozenset[str]
    seconds: float


class TimedCore:
    """vLLM's engine core in virtual time (`engine.vllm.core.Core`), with the steps of vLLM's own `EngineCoreProc`."""

    errored = False

    def __init__(
        self,
        config: VllmConfig,
        compute: Compute,
        script: Script,
        *,
        drafts: bool,
        memory: HostLink | None = None,
    ) -> None:
        """drafts: whether it is a drafter, with the tokens of devices' models.

        memory: the link to host memory, where vLLM offloads to it.
        """
        loop = compute.hardware.loop
        settings = vllm_settings(config)
        self.scheduler = new_scheduler(settings, loop.time, 1 if memory is None else memory.token_bytes)
        self._offloading = memory and TimedOffloading(
            settings, self.scheduler.kv_cache_config, memory.mb_per_s, loop.time
        )
        self._ahead = 2 if isinstance(self.scheduler, AsyncScheduler) else 1
        self._steps: deque[_Step] = deque()  # scheduled ones, the first of which is computed
        self._hash_blocks = block_hasher(settings)
        self._outputs = Outputs()
        self._loop, self._compute, self._script, self._drafts = loop, compute, script, drafts
        self._requests = count()
        self._commands: deque[Command] = deque()
        self._aborts: list[str] = []  # to be reported at the end of the running step
        self._closed = self.stopped = False
        self._alarm = Alarm(loop, self._turn)

    def stop(self) -> None:
        """Stop its process, for good: it says nothing any more."""
        self.stopped = True

    # -- the engine's interface ---------------------------------------------------------------------

    async def add(
        self, number: int, tokens: list[int], params: SamplingParams, adapter: str = ""
    ) -> RequestOutputs:
        name = f"{number}-{next(self._requests)}"
        request = EngineCoreRequest(
            request_id=name,
            external_req_id=name,
            prompt_token_ids=tokens.copy(),  # vLLM changes it
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=self._loop.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        outputs = self._outputs.open(name)
        begun = Request.from_engine_core_request(request, self._hash_blocks)
        self._submit(partial(self.scheduler.add_request, begun))
        return outputs

    async def ask(self, asks: Sequence[Ask]) -> None:
        self._submit(partial(self.scheduler.ask, asks))

    async def abort(self, request_id: str) -> None:
        if self._outputs.abort(request_id):
            self._aborts.append(request_id)
            self._submit(partial(self._finish, request_id))

    async def stats(self) -> EngineStats:
        if self.stopped:
            await self._loop.create_future()
        return copy(self.scheduler.stats())

    async def close(self) -> None:
        self._closed = True
        self._alarm.stop()
        self._commands.clear()

    # -- the steps --------------------------------------------------------------------------------------

    def _submit(self, command: Command) -> None:
        self._commands.append(command)
        if not self._steps:
            self._alarm.ring_at(self._loop.time())

    def _finish(self, name: str) -> None:
        """Finish one request at a time: of several, vLLM would free the blocks in the order of a set."""
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _turn(self) -> None:
        if not self._closed and not self.stopped and not self._steps:
            self._schedule()

    def _schedule(self) -> None:
        """Schedule steps, as far ahead as vLLM does."""
        scheduler = self.scheduler
        while len(self._steps) < self._ahead:
            while self._commands:
                self._commands.popleft()()
            self._aborts.clear()
            if not scheduler.has_requests():
                return
            work = scheduler.schedule()
            if not work.total_num_scheduled_tokens:
                if self._offloading is not None:
                    self._offloading.begin(work)
                scheduler.update_from_output(work, replace(EMPTY_MODEL_RUNNER_OUTPUT, **self._copied()))
                if not self._steps and (idle_s := self._idle_s) is not None:
                    self._alarm.ring_at(self._loop.time() + max(idle_s, SHORTEST_WAIT_S))
                return
            requests = scheduler.requests
            says = [name for name in work.num_scheduled_tokens if not requests[name].is_prefill_chunk]
            seconds = step_s(self._compute.timer, self._chunks(work), self._compute.padded)
            self._steps.append(_Step(work, frozenset(says), seconds))
            if len(self._steps) == 1:
                self._begin()

    def _begin(self) -> None:
        step = self._steps[0]
        held_s = 0.0 if self._offloading is None else self._offloading.begin(step.work)
        self._compute.hardware.compute(held_s + step.seconds, self._end)

    @property
    def _idle_s(self) -> float | None:
        """Return the seconds until a step that found nothing to do is tried again; None: until something is asked."""
        idle_s = self.scheduler.idle_s
        if idle_s is not None or not self.scheduler.has_requests():
            return idle_s
        return POLL_S  # copies are under way, or begin with a step

    def _copied(self) -> dict[str, KVConnectorOutput]:
        """Return what of an output tells of copies."""
        return {} if self._offloading is None else {"kv_connector_output": self._offloading.end()}

    def _end(self) -> None:
        if self._closed or self.stopped:
            return
        step = self._steps.popleft()
        for name in self._aborts:
            self._finish(name)
        if self._steps:  # it has been scheduled ahead
            self._begin()
        for outputs in self.scheduler.update_from_output(step.work, self._say(step)).values():
            self._outputs.put(outputs.outputs)
        self._schedule()

    def _chunks(self, work: SchedulerOutput) -> Iterator[Chunk]:
        requests, drafts = self.scheduler.requests, work.scheduled_spec_decode_tokens
        for name, grant in work.num_scheduled_tokens.items():
            request = requests[name]
            is_window = not request.is_prefill_chunk and grant == 1 + len(drafts.get(name, ()))
            yield grant, request.num_computed_tokens - grant, is_window  # vLLM has counted the grant already

    def _say(self, step: _Step) -> ModelRunnerOutput:
        """Return the sampled tokens of all requests whose prompt is complete, and which have not ended meanwhile."""
        requests, drafts = self.scheduler.requests, step.work.scheduled_spec_decode_tokens
        names = list(step.work.num_scheduled_tokens)
        said = [
            self._tokens(requests[name], drafts.get(name, []))
            if name in step.says and name in requests
            else []
            for name in names
        ]
        return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, said, **self._copied())

    def _tokens(self, request: Request, drafts: list[int]) -> list[int]:
        script = self._script
        number = script.number(request.all_token_ids)
        position = request.num_tokens - script.request(number).prompt_tokens
        if self._drafts:
            return script.draft(number, position)
        right, own = script.judge(number, position, drafts)
        return [*drafts[:right], own]


class TimedVllm(VllmEngine):
    """The live engine over a core in virtual time."""

    def __init__(self, core: TimedCore, info: EngineInfo, config: VllmConfig) -> None:
        super().__init__(core, info, config)
        self._scheduler = core.scheduler

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> VllmSession:
        """Open a session, which tells no log-probabilities: there is no model."""
        return await super().open(prompt, msgspec.structs.replace(sampling, logprobs=-1), log)

    def gauges(self) -> EngineStats:
        """Return counters and gauges, as `engine.core.engine.CoreEngine.gauges`."""
        return self.counted(copy(self._scheduler.stats()))

    @property
    def blocks_used(self) -> int:
        """Number of blocks that sessions hold."""
        stats = self._scheduler.stats()
        return stats.blocks_total - stats.blocks_free


def vllm_settings(config: VllmConfig) -> Any:
    """Return vLLM's own configuration (`vllm.config.VllmConfig`), made as for a live engine."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(NO_MODEL), encoding="utf-8")
        settings = arguments(Path(folder), config).create_engine_config()
    settings.cache_config.num_gpu_blocks = (
        config.kv_blocks
    )  # a live core writes the blocks that fit its memory here
    return settings


def new_scheduler(
    settings: Any, clock: Callable[[], float] = time.monotonic, token_bytes: float = 1
) -> TandemScheduler:
    """Return the scheduler of vLLM's configuration, with a KV cache of numbers alone. token_bytes: of it."""
    cache = settings.cache_config
    half = max(1, round(token_bytes / 2))  # a token's keys, and its values
    layers = FullAttentionSpec(block_size=cache.block_size, num_kv_heads=1, head_size=half, dtype=torch.uint8)
    memory = KVCacheConfig(cache.num_gpu_blocks, [], [KVCacheGroupSpec(["all"], layers)])
    kind: type[TandemScheduler] = settings.scheduler_config.get_scheduler_cls()
    return kind(settings, memory, StructuredOutputManager(settings), cache.block_size, clock=clock)


def block_hasher(settings: Any) -> Any:
    """Return what hashes a request's blocks; None without a prefix cache."""
    cache = settings.cache_config
    if not cache.enable_prefix_caching:
        return None
    hashing = get_hash_fn_by_name(cache.prefix_caching_hash_algo)
    init_none_hash(hashing)
    return get_request_block_hasher(cache.block_size, hashing)


def timed_vllm(
    model: str,
    config: VllmConfig,
    compute: Compute,
    script: Script,
    *,
    drafts: bool = False,
    memory: HostLink | None = None,
) -> TimedVllm:
    """Return an engine in virtual time.

    config: with kv_blocks.
    drafts, memory: see TimedCore.
    """
    core = TimedCore(config, compute, script, drafts=drafts, memory=memory)
    assert config.kv_tokens is not None
    context = min(core.scheduler.max_model_len, config.kv_tokens)
    return TimedVllm(core, EngineInfo(model, VOCABULARY, VOCAB_SIZE, context, EOS, draft_probs=False), config)
