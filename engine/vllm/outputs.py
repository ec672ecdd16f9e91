"""Outputs of vLLM's core, request by request, until the sessions take it: tokens as they come off the core, without
the texts, sums and statistics that vLLM makes of them for its own users."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput


class RequestOutputs:
    """Outputs of one request. request_id: vLLM's."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self._waiting: list[EngineCoreOutput] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def put(self, output: EngineCoreOutput) -> None:
        """Add an output."""
        self._waiting.append(output)
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the outputs with an error, which replaces those that were not taken."""
        self._error = error
        self._news.set()

    async def get(self) -> list[EngineCoreOutput]:
        """Take all outputs, at least one, which is waited for. Raises the error that ended them."""
        if self._error is None and not self._waiting:
            self._news.clear()
            await self._news.wait()
        if self._error is not None:
            raise copy.copy(
                self._error
            )  # with a traceback of its own, which would hold this object and the error
        taken, self._waiting = self._waiting, []
        return taken


class Outputs:
    """Outputs of all requests of a core that have not ended."""

    def __init__(self) -> None:
        self._requests: dict[str, RequestOutputs] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def open(self, request_id: str) -> RequestOutputs:
        """Keep a request's outputs from now on."""
        made = self._requests[request_id] = RequestOutputs(request_id)
        return made

    def put(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Add what a step has made. Requests that were aborted meanwhile get nothing."""
        for output in outputs:
            request = self._requests.get(output.request_id)
            if request is not None:
                request.put(output)
                if output.finished:
                    del self._requests[output.request_id]

    def abort(self, request_id: str) -> bool:
        """End a request's outputs, so that nothing waits for them without end; False if it has ended already."""
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        request = self._requests.pop(request_id, None)
        if request is not None:
            request.put(EngineCoreOutput(request_id, [], finish_reason=FinishReason.ABORT))
        return request is not None

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.fail(error)
