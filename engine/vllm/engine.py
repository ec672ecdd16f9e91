"""The engine protocol over vLLM, whose own process decodes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tandem.engine.base import (
    Drafts,
    EngineInfo,
    EngineStats,
    EngineStopped,
    InvalidRequest,
    Sampling,
)
from tandem.engine.core.sequence import Sequence as Log
from tandem.engine.models.model_folder import model_name
from tandem.engine.packages import VLLM
from tandem.engine.text.detokenizer import watch_for
from tandem.engine.text.grammar import Grammars, matcher_for
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.validation import check_request, check_room
from tandem.engine.vllm import set_environment
from tandem.engine.vllm.config import VllmConfig, arguments
from tandem.engine.vllm.core import AsyncCore, VllmCore
from tandem.engine.vllm.session import NO_DRAFTS, VllmRequest, VllmSession, sampling_params
from tandem.engine.vllm.views import Ask, Label
from tandem.policies.estimators.overdue import AnswerLimit

STATS_S = 0.5
"""Longest wait for the scheduler's counters."""


def load(
    folder: str | Path,
    config: VllmConfig,
    *,
    name: str | None = None,
    threads: int | None = None,
    report: Callable[[dict[str, object]], object] = lambda _: None,
) -> VllmEngine:
    """Load an engine from a local Hugging Face folder; returns when it is up, after about half a minute.

    name: of the model, by default the folder's.
    threads: torch's, on a CPU; None: torch's default.
    report: called with the loaded model's figures, by name.
    Raises PackageMissing, and ValueError for options that vLLM does not have.
    """
    VLLM.require()
    began_s = time.perf_counter()
    folder = Path(folder)
    set_environment()
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])

    settings = arguments(folder, config).create_engine_config()
    core = AsyncCore(settings, config.adapters)
    tokenizer = Tokenizer.load(folder)
    kv_tokens = (settings.cache_config.num_gpu_blocks - 1) * settings.cache_config.block_size
    info = EngineInfo(
        model=name or model_name(folder),
        vocabulary=tokenizer.vocabulary,
        vocab_size=min(settings.model_config.get_vocab_size(), tokenizer.vocab_size),
        context=min(settings.model_config.max_model_len, kv_tokens),
        eos=tokenizer.eos,
        draft_probs=False,
        takes_probs=config.takes_probs,
    )
    report(
        {
            "model": info.model,
            "load_s": round(time.perf_counter() - began_s, 2),
            "dtype": str(settings.model_config.dtype).removeprefix("torch."),
            "place": settings.device_config.device_type,
            "kv_tokens": kv_tokens,
            "speculator": (config.speculator or {}).get("method", "none"),
            "async_scheduling": settings.scheduler_config.async_scheduling,
        }
    )
    return VllmEngine(core, info, config, tokenizer)


class VllmEngine:
    """Sessions of one core.

    counters: since the start, of this side.
    died: vLLM's error when its process is gone.
    refused: vLLM's error for a bad request.
    """

    def __init__(
        self, core: VllmCore, info: EngineInfo, config: VllmConfig, tokenizer: Tokenizer | None = None
    ) -> None:
        """tokenizer: to recognise stop strings and to follow grammars; without one they are refused."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        self.info, self.counters = info, EngineStats()
        self.died, self.refused = EngineDeadError, VLLMClientError
        self._core, self._tokenizer = core, tokenizer
        self._grammars = None if tokenizer is None else Grammars(tokenizer, info.vocab_size)
        self._adapters = frozenset(config.adapters)
        self._max_open = config.max_sessions + config.max_waiting
        self._sessions: dict[int, VllmSession] = {}
        self._numbers = 0
        self._asks: list[Ask] = []
        self._sending: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._asking: asyncio.Task[EngineStats] | None = None
        self._last = EngineStats()  # of the scheduler
        self._answers = AnswerLimit()

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> VllmSession:
        self._check_running()
        info = self.info
        check_request(prompt, log, sampling, info.vocab_size, info.context, self._adapters)
        matcher = await matcher_for(self._grammars, sampling, self.info.eos, log)
        self._check_running()  # meanwhile it may have been closed
        check_room(len(self._sessions), self._max_open)
        stops = watch_for(sampling.stop, self._tokenizer)
        self._numbers += 1
        sequence = Log(self._numbers, list(prompt), list(log), sampling, self.info.eos, stops)
        sequence.matcher = matcher
        session = self._sessions[self._numbers] = VllmSession(self, sequence)
        self.counters.opened += 1
        try:
            if sequence.finish is None and not sampling.forced:
                await session.start()
        except BaseException:
            await session.cancel()
            raise
        return session

    @property
    def sessions(self) -> int:
        """Open ones."""
        return len(self._sessions)

    async def start(self, log: Log, forced: Sequence[int] = ()) -> VllmRequest:
        """Have vLLM go on after a session's log and `forced` tokens, which it scores. Raises EngineStopped."""
        label = Label(log.number, log.sampling.reader_rate, log.output_len, log.sampling.waited_s)
        params = sampling_params(log, label, bool(forced))
        tokens = [*log.tokens, *forced]
        adding = asyncio.ensure_future(self._core.add(log.number, tokens, params, log.sampling.adapter))
        try:
            outputs = await asyncio.shield(adding)
        except asyncio.CancelledError:
            self._send(self._undo(adding))
            raise
        except self.died as error:
            raise EngineStopped(f"vLLM has stopped: {error}") from None
        except self.refused as error:
            raise InvalidRequest(f"vLLM does not take this: {error}") from None
        return VllmRequest(outputs, tokens.copy(), log.sampling.logprobs, len(forced))

    def ask(self, request: VllmRequest, drafts: Drafts = NO_DRAFTS) -> None:
        """Let a request continue to its `until`, with drafts after its tokens. Calls of one turn of the event loop go
        in one message."""
        if not self._asks:
            asyncio.get_running_loop().call_soon(self._send_asks)
        self._asks.append((request.id, request.until, request.received, drafts.ids, drafts.probs))

    def abort(self, request: VllmRequest) -> None:
        """A request is not needed any more."""
        if not self._closed:
            self._send(self._core.abort(request.id))

    def forget(self, session: VllmSession) -> None:
        """A session has ended."""
        if self._sessions.pop(session.log.number, None) is not None:
            self.counters.cancelled += session.log.finish is None
            self.counters.finished += session.log.finish is not None

    async def stats(self) -> EngineStats:
        """Return the counters; the scheduler's are the last known ones while its core computes a long step or hangs."""
        self._check_running()
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self._ask_core())
        done, _ = await asyncio.wait((asking,), timeout=STATS_S)
        if done:
            self._last = asking.result()
        reads = self._last.waiting > 0 or any(session.reads for session in self._sessions.values())
        now_s = asyncio.get_running_loop().time()
        overdue_s = self._answers.overdue_s(now_s, reads, self._core.stopped)
        return self.counted(msgspec.structs.replace(self._last, overdue_s=overdue_s))

    async def _ask_core(self) -> EngineStats:
        now = asyncio.get_running_loop().time
        self._answers.asked(now())
        stats = await self._core.stats()
        self._answers.answered(now())
        return stats

    def counted(self, stats: EngineStats) -> EngineStats:
        """Add to the scheduler's counters those of this side."""
        for counter in ("opened", "cancelled", "finished", "tokens_generated"):
            setattr(stats, counter, getattr(self.counters, counter))
        for counter in (
            "tokens_drafted",
            "tokens_verified",
            "tokens_accepted",
        ):  # theirs: vLLM's own proposals
            setattr(stats, counter, getattr(stats, counter) + getattr(self.counters, counter))
        stats.sessions = len(self._sessions)
        stats.running = sum(session.busy for session in self._sessions.values())
        return stats

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.fail(EngineStopped("the engine was closed"))
        await self._core.close()

    def _check_running(self) -> None:
        if self._closed or self._core.errored:
            raise EngineStopped("the engine is not running")

    def _send_asks(self) -> None:
        asks, self._asks = self._asks, []
        if not self._closed:
            self._send(self._core.ask(asks))

    def _send(self, message: Coroutine[Any, Any, Any]) -> None:
        """Send a message without waiting; if vLLM is gone, its sessions hear of it where they wait for tokens."""
        task = asyncio.ensure_future(message)
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[Any]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()

    async def _undo(self, adding: asyncio.Future[Any]) -> None:
        await self._core.abort((await adding).request_id)
