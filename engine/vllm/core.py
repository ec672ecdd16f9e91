"""vLLM's scheduler and model as an engine reaches them: in a process of their own.

A simulation has them in virtual time (`simulator.engines.vllm`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tandem.engine.base import EngineStats
from tandem.engine.vllm.outputs import Outputs, RequestOutputs
from tandem.engine.vllm.views import Ask

if TYPE_CHECKING:
    from vllm.config import VllmConfig as Settings
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.core_client import AsyncMPClient


class VllmCore(Protocol):
    """vLLM's scheduler and model, wherever they run. Calls return when the message is on its way."""

    @property
    def errored(self) -> bool:
        """Whether it has failed."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether its process is stopped, and may go on."""
        ...

    async def add(
        self, number: int, tokens: list[int], params: SamplingParams, adapter: str = ""
    ) -> RequestOutputs:
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
    """vLLM's core in a process of its own, reached as vLLM's AsyncLLM reaches it."""

    def __init__(self, settings: Settings, adapters: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start the process; returns when it is up. adapters: folders by name."""
        from vllm.lora.request import LoRARequest
        from vllm.renderers import renderer_from_config
        from vllm.transformers_utils.config import maybe_register_config_serialize_by_value
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.engine.input_processor import InputProcessor
        from vllm.v1.executor import Executor

        maybe_register_config_serialize_by_value()
        self._renderer = renderer_from_config(settings)
        self._inputs = InputProcessor(settings, self._renderer)
        self._client = EngineCoreClient.make_async_mp_client(
            vllm_config=settings,
            executor_class=Executor.get_class(settings),
            log_stats=False,
            renderer=self._renderer,
        )
        self._adapters = {
            name: LoRARequest(name, number, folder)
            for number, (name, folder) in enumerate(adapters.items(), start=1)
        }
        self._outputs = Outputs()
        self._tasks: tuple[Any, ...] | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def errored(self) -> bool:
        ended = self._listening is not None and self._listening.done()
        return ended or bool(self._client.resources.engine_dead)

    @property
    def stopped(self) -> bool:
        manager = self._client.resources.engine_manager
        return any(_is_stopped(process.pid) for process in getattr(manager, "processes", ()))

    async def add(
        self, number: int, tokens: list[int], params: SamplingParams, adapter: str = ""
    ) -> RequestOutputs:
        if self._tasks is None:
            self._tasks = await self._client.get_supported_tasks_async()
        prompt: Any = {"type": "token", "prompt_token_ids": tokens}
        lora = self._adapters[adapter] if adapter else None
        request = self._inputs.process_inputs(f"{number}", prompt, params, self._tasks, lora_request=lora)
        self._inputs.assign_request_id(request)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        outputs = self._outputs.open(request.request_id)
        try:
            await self._client.add_request_async(request)
        except BaseException:
            self._outputs.abort(request.request_id)
            raise
        return outputs

    async def ask(self, asks: Sequence[Ask]) -> None:
        await self._client.call_utility_async("tandem_ask", asks)

    async def abort(self, request_id: str) -> None:
        if self._outputs.abort(request_id):
            await self._client.abort_requests_async([request_id])

    async def stats(self) -> EngineStats:
        seen = await self._client.call_utility_async("tandem_stats")
        return msgspec.convert(seen, EngineStats)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()  # it would hear that vLLM is gone
        self._renderer.shutdown()
        await shut_down(self._client)

    async def _listen(self) -> None:
        try:
            while True:
                self._outputs.put((await self._client.get_output_async()).outputs)
        except Exception as error:
            self._outputs.fail(error)


def _is_stopped(pid: int | None) -> bool:
    """Return whether the system says that a process is stopped; Linux does."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    return False


async def shut_down(client: AsyncMPClient) -> None:
    """End a core's process; nothing is left for when its client is collected, which may be at the interpreter's end."""
    context = client.resources.ctx  # of ZeroMQ, which vLLM leaves open
    await asyncio.to_thread(client.shutdown)
    await asyncio.sleep(0)  # its sockets are closed on this loop
    context.destroy(linger=0)
