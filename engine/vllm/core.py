"""vLLM's scheduler and model as an engine reaches them: in a process of their own.

A simulation has them in virtual time (`simulator.engines.vllm`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tandem.engine.base import EngineStats
from tandem.engine.vllm.views import Ask

if TYPE_CHECKING:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import RequestOutputCollector


class VllmCore(Protocol):
    """vLLM's scheduler and model, wherever they run. Calls return when the message is on its way."""

    @property
    def errored(self) -> bool:
        """Whether it has failed."""
        ...

    async def add(
        self, number: int, tokens: list[int], params: SamplingParams, adapter: str = ""
    ) -> RequestOutputCollector:
        """Begin a request of session `number`, with an adapter of that name; its outputs, as they come."""
        ...

    async def ask(self, asks: Sequence[Ask]) -> None:
        """Tell the scheduler what sessions are asked for."""
        ...

    async def abort(self, request_id: str) -> None:
        """A request is not needed any more."""
        ...

    async def stats(self) -> EngineStats:
        """Return the scheduler's counters."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class AsyncCore:
    """Core of vLLM's AsyncLLM. adapters: folders by name."""

    def __init__(self, llm: AsyncLLM, adapters: Mapping[str, str] = MappingProxyType({})) -> None:
        from vllm.lora.request import LoRARequest

        self._llm = llm
        self._adapters = {
            name: LoRARequest(name, number, folder)
            for number, (name, folder) in enumerate(adapters.items(), start=1)
        }

    @property
    def errored(self) -> bool:
        return bool(self._llm.errored)

    async def add(
        self, number: int, tokens: list[int], params: SamplingParams, adapter: str = ""
    ) -> RequestOutputCollector:
        prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": tokens}
        lora = self._adapters[adapter] if adapter else None
        return await self._llm.add_request(f"{number}", prompt, params, lora_request=lora)

    async def ask(self, asks: Sequence[Ask]) -> None:
        await self._llm.engine_core.call_utility_async("tandem_ask", asks)

    async def abort(self, request_id: str) -> None:
        await self._llm.abort(request_id, internal=True)

    async def stats(self) -> EngineStats:
        seen = await self._llm.engine_core.call_utility_async("tandem_stats")
        return msgspec.convert(seen, EngineStats)

    async def close(self) -> None:
        await shut_down(self._llm)


async def shut_down(llm: AsyncLLM) -> None:
    """End it and its process; nothing is left for when it is collected, which may be at the interpreter's end."""
    if (listening := llm.output_handler) is not None:
        listening.cancel()  # it would complain that vLLM is gone
    context = llm.engine_core.resources.ctx  # of ZeroMQ, which vLLM leaves open
    await asyncio.to_thread(llm.shutdown)
    llm.shutdown = lambda *_, **__: None
    await asyncio.sleep(0)  # its sockets are closed on this loop
    context.destroy(linger=0)
