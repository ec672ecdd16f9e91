"""ASGI applications served over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


class EagerServer(uvicorn.Server):
    """A server that ends as soon as its requests and connections have. uvicorn's own waits for 0.1 s, whatever it
    serves, and looks ten times a second."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for listening in self.servers:
            listening.close()
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.tasks or state.connections:  # noqa: ASYNC110 - uvicorn says it to nobody
                    await asyncio.sleep(0)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()


@asynccontextmanager
async def served(app: object, send_buffer: int | None = None) -> AsyncIterator[str]:
    """Serve the ASGI app on a free port in this event loop; gives its address. send_buffer: of connections, bytes.

    Bypasses uvicorn's main loop, which checks only ten times a second whether to end.
    """
    config = uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=5)
    config.load()
    server = EagerServer(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        await server.startup([listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await server.shutdown()
