"""Engines in processes of their own, reached over the wire, as replicas and device hosts have them."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import DeviceProfile
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.pools.engines import AnySettings, MiddleSettings, build_engine
from tandem.engine.base import Engine

START_S = 120.0  # a grown model is written and read before its process answers


@contextmanager
def engine_process(
    settings: AnySettings | MiddleSettings, devices: int = 0, profile: DeviceProfile | None = None
) -> Iterator[str]:
    """Run one engine, named "engine" on the wire, in a child process; yields its address.

    devices: number of devices that share the engine, as under a device host: "device-0" and so on.
    profile: of these devices.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    # no daemon: vLLM has a process of its own
    process = context.Process(target=_serve, args=(settings, devices, profile, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_S):
            raise TimeoutError(f"the engine {settings} did not start within {START_S:g} s")
        yield ours.recv()
    finally:
        ours.close()  # the child ends when its end of the pipe breaks
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(
    settings: AnySettings | MiddleSettings, devices: int, profile: DeviceProfile | None, parent: Connection
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    asyncio.run(_serve_until_closed(settings, devices, profile, parent))


async def _serve_until_closed(
    settings: AnySettings | MiddleSettings, devices: int, profile: DeviceProfile | None, parent: Connection
) -> None:
    engine = build_engine(settings)
    engines: dict[str, Engine] = {"engine": engine}
    if profile is not None:
        engines |= {f"device-{i}": Device(engine, profile) for i in range(devices)}
    async with serve_engines(engines) as endpoint:
        parent.send(endpoint.address)
        closed = asyncio.Event()
        asyncio.get_running_loop().add_reader(parent.fileno(), closed.set)
        await closed.wait()
    await engine.close()
