"""A device's program: its engines, its own API on this machine, and its connection to the cloud."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import uvicorn

from tandem.app.api.routes import create_api
from tandem.app.device.backend import DeviceBackend
from tandem.app.device.settings import DeviceProgram
from tandem.app.device.speed import measure
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.address import split
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.pools.engines import EngineSettings, build_engine, tokenizer_model
from tandem.deployments.pools.models import model_folder
from tandem.deployments.tracing.engine import traced
from tandem.deployments.tracing.exporter import Exporter
from tandem.engine.base import SplitInfo
from tandem.engine.split.base import OuterEngine
from tandem.engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tandem.app.device.bundle_selection import BundleCandidate
    from tandem.engine.torch.split.bundle import Bundle

KNOWN_S = 5.0
"""Longest wait for the cloud to register the device before it counts as ready without the cloud."""
STOP_S = 5
"""Seconds that answers have to finish when the program ends."""


@dataclass(frozen=True, slots=True)
class Running:
    """address: of the API, "http://host:port", with TLS "https://host:port".
    uplink: to the cloud.
    ended: the first of API and uplink that does.
    split: which part of a split model it has; None: none.
    """

    address: str
    uplink: Uplink
    ended: asyncio.Future[None]
    split: SplitInfo | None


@asynccontextmanager
async def running(
    settings: DeviceProgram, report: Callable[[str], object] = lambda _: None
) -> AsyncIterator[Running]:
    """Serve the device's owner and the cloud until the context is left; if the cloud answers, the device is registered
    by then. report: called with progress messages.

    Raises OSError, ValueError, UnsupportedModel for settings, models or keys that are of no use.
    """
    secret, tls = settings.secret(), settings.tls()
    if settings.api.tls is not None:
        settings.api.tls.context()  # raises now where the files are of no use
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(_listening(settings.listen))
        report("Loading models")
        bundles = await asyncio.to_thread(_bundles, settings)
        speaks = await asyncio.to_thread(_tokenizer, settings.engine)
        if bundles:
            _check_own(settings, speaks, bundles[0].bundle)
        engine = await asyncio.to_thread(build_engine, settings.engine)
        stack.push_async_callback(engine.close)
        report("Measuring")
        speed = await measure(engine)
        if (exporter := Exporter.of_environment("device")) is not None:
            stack.push_async_callback(exporter.close)
        device = Device(engine, load_profile(settings.profile))
        stack.push_async_callback(device.close)

        def record() -> DeviceRecord:
            said = device.record("")
            if said.emulated:
                return said
            return msgspec.structs.replace(
                said, prefill_token_s=speed.prefill_token_s, decode_token_s=speed.decode_token_s
            )

        uplink = Uplink(
            settings.connect,
            secret,
            traced(device, exporter),
            record,
            tls=tls,
            settings=settings.wire(),
            model=settings.cloud_model,
        )
        loop = asyncio.get_running_loop()
        dialling = loop.create_task(uplink.run())
        stack.push_async_callback(_cancel, [dialling])
        outer, tokenizer = None, speaks
        if bundles:
            outer, tokenizer = await _outer(bundles, settings, uplink)
            stack.push_async_callback(outer.close)
        backend = DeviceBackend(settings, device, record, speaks, outer, tokenizer, uplink)
        backend.tracer = None if exporter is None else exporter.tracer
        stack.push_async_callback(backend.close)
        shown = settings.api.tls
        # No proxy is in front of it: the peer is the client, whatever a request's header says.
        config = uvicorn.Config(
            create_api(backend),
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=None if shown is None else shown.certificate,
            ssl_keyfile=None if shown is None else shown.key,
        )
        api = _Api(config)
        serving = loop.create_task(api.serve([listening]))
        ended = loop.create_task(_first([serving, dialling]))
        stack.push_async_callback(_stop, api, serving, [dialling, ended])
        report("Connecting")
        known = loop.create_task(uplink.connected())
        await asyncio.wait((known, ended), timeout=KNOWN_S, return_when=asyncio.FIRST_COMPLETED)
        known.cancel()
        address = "http{}://{}:{}".format("s" if shown else "", *listening.getsockname()[:2])
        yield Running(address, uplink, ended, None if outer is None else outer.info.split)


class _Api(uvicorn.Server):
    """Signals are the program's to handle."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _first(tasks: list[asyncio.Task[None]]) -> None:
    """Return, or raise, as the first of them does."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _stop(api: uvicorn.Server, serving: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
    """The API first, which lets its answers end."""
    api.should_exit = True
    await asyncio.wait((serving,))
    await _cancel(others)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _bundles(settings: DeviceProgram) -> list[BundleCandidate]:
    if settings.bundle is None:
        return []
    from tandem.app.device.bundle_selection import (
        candidates,  # imports torch: only where there is such a model
    )

    return candidates(settings.bundle)


async def _outer(
    bundles: list[BundleCandidate], settings: DeviceProgram, uplink: Uplink
) -> tuple[OuterEngine, Tokenizer]:
    """Load the outer part of the chosen bundle, and its tokenizer."""
    from tandem.app.device.bundle_selection import choose

    chosen = await choose(bundles, settings, uplink)
    outer = await asyncio.to_thread(chosen.load, settings)
    return outer, await asyncio.to_thread(Tokenizer.load, chosen.folder)


def _check_own(settings: DeviceProgram, speaks: Tokenizer, ends: Bundle) -> None:
    """Raise ValueError where the embedded family's model, by default, would stand in for a split model of another
    family: it knows nothing but its invented world."""
    if "engine" not in settings.model_fields_set and speaks.vocabulary != ends.vocabulary:
        raise ValueError(
            f"{ends.model} is split, and nothing answers while the cloud does not: name a model of the device's own, "
            "too (--model MODEL beside --model BUNDLE, or engine: in the settings)"
        )


def _tokenizer(engine: EngineSettings) -> Tokenizer:
    """Return the tokenizer of a device's own engine; any will do for one without a model."""
    return Tokenizer.load(model_folder(tokenizer_model(engine) or "target"))


@contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    """A socket that is bound to "host:port"; port 0: any. Raises OSError where the port is taken."""
    with socket.create_server(split(address), reuse_port=False) as listening:
        yield listening
