"""Endpoints in processes of their own, which a test may kill or drain."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.pools.engines import MiddleSettings, TorchSettings, build_engine
from tandem.deployments.pools.replica import EndpointSettings, EngineEndpoint

START_S = 60.0
LAYERS = 2  # of the target, before its middle
DRAIN_S = 0.05  # that a draining replica leaves its sessions: less than their answers take

# Forked from a server that has imported everything, so that a process is there as soon as its model is read.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__, "tandem.engine.torch.engine", "tandem.engine.torch.split"])


class EndpointProcess:
    """A process that serves one engine. address: "host:port"; `engine`: its name there; it runs until `end`."""

    def __init__(self, engine: str, serve: Callable[[str, Connection], Coroutine[Any, Any, None]]) -> None:
        self.engine = engine
        self._pipe, theirs = _processes.Pipe()
        self._process = _processes.Process(target=_run, args=(serve, engine, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._address = ""

    @classmethod
    def replica(cls, pool: str) -> EndpointProcess:
        """Return a replica of a pool: the target as verifier, its middle as such, the small model as drafter."""
        return cls(pool, _serve_replica)

    @classmethod
    def device(cls, name: str) -> EndpointProcess:
        """A device at this machine's own speed, with the small model."""
        return cls(name, _serve_device)

    @property
    def address(self) -> str:
        """Address at which it listens, once it does."""
        if not self._address:
            if not self._pipe.poll(START_S):
                raise TimeoutError(f"{self.engine} did not start within {START_S:g} s")
            self._address = self._pipe.recv()
        return self._address

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """SIGKILL: no good-byes."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)

    def drain(self) -> None:
        """Do what Serve does to a replica that has to go: give it DRAIN_S, then it ends."""
        self._pipe.send("drain")

    def exit_code(self, patience_s: float = 10.0) -> int | None:
        """Return its exit code (negative signal number if killed); None if it still runs."""
        self._process.join(patience_s)
        return self._process.exitcode

    def end(self) -> None:
        """End it, whatever it does."""
        self._pipe.close()  # which it notices
        if self.exit_code() is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _run(
    serve: Callable[[str, Connection], Coroutine[Any, Any, None]], engine: str, parent: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    asyncio.run(serve(engine, parent))


async def _serve_replica(pool: str, parent: Connection) -> None:
    """A replica as Serve makes one, without Serve."""
    settings = {
        "verifier": TorchSettings(model="target"),
        "drafter": TorchSettings(model="small"),
        "middle": MiddleSettings(model="target", first=LAYERS),
    }[pool]
    _kept.append(replica := EngineEndpoint.__new__(EngineEndpoint))
    await replica.__init__(pool, settings, EndpointSettings(drain_s=DRAIN_S))  # type: ignore[misc]
    (state,) = await replica.state()
    parent.send(state.address)
    if await _told(parent):
        await replica.__del__()


async def _serve_device(name: str, parent: Connection) -> None:
    engine = build_engine(TorchSettings(model="small"))
    device = Device(engine, msgspec.structs.replace(load_profile("native"), sessions=64))
    async with serve_engines({name: device}) as endpoint:
        parent.send(endpoint.address)
        await _told(parent)
    await engine.close()


_kept: list[
    EngineEndpoint
] = []  # to the process's end: Python's own call of their __del__ would be one too many


async def _told(parent: Connection) -> bool:
    """Wait for a message from the parent; False: there is no parent any more."""
    news = asyncio.Event()
    asyncio.get_running_loop().add_reader(parent.fileno(), news.set)
    await news.wait()
    asyncio.get_running_loop().remove_reader(parent.fileno())
    try:
        parent.recv()
    except EOFError:
        return False
    return True
