"""The engine protocol over vLLM's AsyncLLM, whose own process decodes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.base import EngineInfo, EngineStats, EngineStopped, InvalidRequest, NoCapacity, Sampling
from engine.core.sequence import Sequence as Log
from engine.text import watch
from engine.tokenizer import Tokenizer
from engine.validation import check_request
from engine.vllm import require
from engine.vllm.config import VllmConfig, arguments
from engine.vllm.session import Request, VllmSession, sampling_params
from engine.vllm.views import Label

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CONFIGURE_LOGGING": "0",  # that closes the handlers of all loggers, and a replica's log would end there
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a replica has threads, which a fork would lose
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default most of the machine, whatever kv_blocks says
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # engines beside each other would all take the first cores
    "OMP_WAIT_POLICY": "passive",
    # Of the n-gram proposer's compiler. With OpenMP, which torch uses too, OMP_THREAD_LIMIT=1 makes models say nonsense.
    "NUMBA_THREADING_LAYER": "workqueue",
}
"""What vLLM takes from the environment, where nobody has set it."""


def load(
    folder: str | Path,
    config: VllmConfig,
    *,
    name: str | None = None,
    threads: int | None = None,
    report: Callable[[dict[str, object]], object] = lambda _: None,
) -> VllmEngine:
    """An engine over a local Hugging Face folder; returns when it is up, after half a minute or so.

    name: of the model, by default the folder's.
    threads: of torch, on a CPU; None: torch's default.
    report: hears what was loaded, by name.
    Raises VllmMissing, and ValueError for options that vLLM has not.
    """
    require()
    began_s = time.perf_counter()
    folder = Path(folder)
    for key, value in ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(arguments(folder, config))
    tokenizer = Tokenizer.load(folder)
    settings = llm.vllm_config
    kv_tokens = (settings.cache_config.num_gpu_blocks - 1) * settings.cache_config.block_size
    info = EngineInfo(
        model=name or folder.name,
        vocabulary=tokenizer.vocabulary,
        vocab_size=llm.model_config.get_vocab_size(),
        context=min(llm.model_config.max_model_len, kv_tokens),
        eos=tokenizer.eos,
    )
    report(
        {
            "model": info.model,
            "load_s": round(time.perf_counter() - began_s, 2),
            "dtype": str(llm.model_config.dtype).removeprefix("torch."),
            "place": settings.device_config.device_type,
            "kv_tokens": kv_tokens,
        }
    )
    return VllmEngine(llm, info, config, tokenizer)


async def shut_down(llm: AsyncLLM) -> None:
    """End it and its process; nothing is left for when it is collected, which may be at the interpreter's end."""
    if (listening := llm.output_handler) is not None:
        listening.cancel()  # it would complain that vLLM is gone
    context = llm.engine_core.resources.ctx  # of ZeroMQ, which vLLM leaves open
    await asyncio.to_thread(llm.shutdown)
    llm.shutdown = lambda *_, **__: None
    await asyncio.sleep(0)  # its sockets are closed on this loop
    context.destroy(linger=0)


class VllmEngine:
    """Sessions of one AsyncLLM.

    counters: since the start, of what this side sees.
    died: what vLLM raises when its process is gone.
    refused: what it raises at a request that is not to its liking.
    """

    def __init__(self, llm: AsyncLLM, info: EngineInfo, config: VllmConfig, tokenizer: Tokenizer) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        self.info, self.counters = info, EngineStats()
        self.died, self.refused = EngineDeadError, VLLMClientError
        self._llm, self._tokenizer = llm, tokenizer
        self._max_open = config.max_sessions + config.max_waiting
        self._sessions: dict[int, VllmSession] = {}
        self._numbers = 0
        self._asks: list[tuple[str, int, int, Sequence[int]]] = []
        self._sending: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> VllmSession:
        self._check_running()
        check_request(prompt, log, sampling, self.info.vocab_size, self.info.context)
        if len(self._sessions) >= self._max_open:
            raise NoCapacity(f"{len(self._sessions)} sessions are open; no room for another now")
        self._numbers += 1
        stops = partial(watch, self._tokenizer, sampling.stop) if sampling.stop else None
        sequence = Log(self._numbers, list(prompt), list(log), sampling, self.info.eos, stops)
        session = self._sessions[self._numbers] = VllmSession(self, sequence)
        self.counters.opened += 1
        try:
            if sequence.finish is None and not sampling.forced:
                await session.start()
        except BaseException:
            await session.cancel()
            raise
        return session

    async def start(self, log: Log, forced: Sequence[int] = ()) -> Request:
        """Have vLLM go on after a session's log and `forced` tokens, which it scores. Raises EngineStopped."""
        label = Label(log.number, log.sampling.reader_rate, log.output_len)
        params = sampling_params(log, label, bool(forced))
        tokens = [*log.tokens, *forced]
        prompt = {"type": "token", "prompt_token_ids": tokens}
        adding = asyncio.ensure_future(self._llm.add_request(f"{log.number}", prompt, params))
        try:
            outputs = await asyncio.shield(adding)
        except asyncio.CancelledError:
            self._send(self._undo(adding))
            raise
        except self.died as error:
            raise EngineStopped(f"vLLM has stopped: {error}") from None
        except self.refused as error:
            raise InvalidRequest(f"vLLM does not take this: {error}") from None
        return Request(outputs, tokens.copy(), log.sampling.logprobs, len(forced))

    def ask(self, request: Request, drafts: Sequence[int] = ()) -> None:
        """Have a request go on to its `until`, with drafts to follow what it has made. What one turn of the event loop
        asks goes in one message."""
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._send_asks)
        self._asks.append((request.id, request.until, request.received, drafts))

    def abort(self, request: Request) -> None:
        """A request is not needed any more."""
        if not self._closed:
            self._send(self._llm.abort(request.id, internal=True))

    def forget(self, session: VllmSession) -> None:
        """A session has ended."""
        if self._sessions.pop(session.log.number, None) is not None:
            self.counters.cancelled += session.log.finish is None
            self.counters.finished += session.log.finish is not None

    async def stats(self) -> EngineStats:
        self._check_running()
        seen = await self._llm.engine_core.call_utility_async("tandem_stats")
        stats = msgspec.convert(seen, EngineStats)
        for counter in ("opened", "cancelled", "finished", "tokens_generated", "tokens_drafted"):
            setattr(stats, counter, getattr(self.counters, counter))
        stats.tokens_verified, stats.tokens_accepted = (
            self.counters.tokens_verified,
            self.counters.tokens_accepted,
        )
        stats.sessions = len(self._sessions)
        stats.running = sum(session.busy for session in self._sessions.values())
        return stats

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.fail(EngineStopped("the engine was closed"))
        await shut_down(self._llm)

    def _check_running(self) -> None:
        if self._closed or self._llm.errored:
            raise EngineStopped("the engine is not running")

    def _send_asks(self) -> None:
        asks, self._asks = self._asks, []
        if not self._closed:
            self._send(self._llm.engine_core.call_utility_async("tandem_ask", asks))

    def _send(self, message: Coroutine[Any, Any, Any]) -> None:
        """Without waiting; if vLLM is gone, its sessions hear of it where they wait for tokens."""
        task = asyncio.ensure_future(message)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()

    async def _undo(self, adding: asyncio.Future[Any]) -> None:
        await self._llm.abort((await adding).request_id, internal=True)
