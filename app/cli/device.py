"""`tandem device`: a device's own program, from its settings to its end."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.logging import RichHandler

from tandem.app.cli.server.choose import SERVICE, alone
from tandem.app.cli.terminal.phases import phases
from tandem.app.client.http import ClientError
from tandem.app.device.program import Running, running
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.wire.frames import AlreadyConnected, Unauthorized
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.modes.split import SplitMode
from tandem.deployments.pools.engines import NullSettings, ServiceSettings
from tandem.deployments.pools.models import require
from tandem.engine.split.base import DESCRIPTION
from tandem.engine.split.leakage import recovery


def settings_of(file: Path | None, said: dict[str, Any]) -> DeviceProgram:
    """Return the YAML file's settings, overridden by the command line; paths are relative to the file. Raises
    ClientError."""
    values: dict[str, Any] = {}
    if file is not None:
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ClientError(f"{file}: {error}") from None
        if not isinstance(values, dict):
            raise ClientError(f"{file} is no mapping of settings")
        for place, names in _paths(values):
            for name in names:
                if isinstance(place.get(name), str):
                    place[name] = file.parent / place[name]
    values |= {name: value for name, value in said.items() if value is not None}
    try:
        return DeviceProgram.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] == "missing":
            raise ClientError(f"{where} is missing: give --{where}") from None
        raise ClientError(f"{where}: {why}" if where else why) from None


def _paths(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield the mappings of settings that hold paths, and the paths' names."""
    yield values, ("key", "authority", "bundle")
    api = values.get("api")
    tls = api.get("tls") if isinstance(api, dict) else None
    if isinstance(tls, dict):
        yield tls, ("certificate", "key")


def model_settings(models: Sequence[str], service: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the settings that `--model` stands for: the ends of a split model, and an engine with the device's own.
    Raises ClientError.

    service: settings of a service that has the device's own model, by its name there; None: the device runs it.
    """
    said: dict[str, Any] = {}
    if service and not models:
        raise ClientError("give --model: the model's name at the server")
    for model in models:
        folder = Path(model)
        ends = folder.is_dir() and ((folder / DESCRIPTION).exists() or not (folder / "config.json").exists())
        name = "bundle" if ends else "engine"
        if name in said:
            raise ClientError(
                f"--model {model}: a device has one {'split model' if ends else 'model of its own'}"
            )
        try:
            said[name] = folder if ends else {**service, "model": model} if service else alone(model)
        except (OSError, ValueError) as error:
            raise ClientError(str(error)) from None
    return said


def service_settings(engine: str, base_url: str | None, tokenizer: str | None) -> dict[str, str]:
    """Return the settings of the service beside which a device runs. Raises ClientError."""
    if engine != SERVICE:
        raise ClientError(f"--engine {engine}: a device's engine follows from its --model, or is {SERVICE}")
    if base_url is None:
        raise ClientError(
            "give --base-url: http://127.0.0.1:11434/v1 for Ollama, http://127.0.0.1:8080/v1 for llama-server"
        )
    if tokenizer is None:
        raise ClientError(
            "give --tokenizer: a folder or GGUF file with the model's tokenizer, or a hub's model"
        )
    return {"kind": SERVICE, "base_url": base_url, "tokenizer": tokenizer}


def run(settings: DeviceProgram) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises ClientError."""
    console = Console(highlight=False)
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[RichHandler(console=console, show_path=False)]
    )
    try:
        if not isinstance(settings.engine, NullSettings | ServiceSettings):
            require(settings.engine.model, settings.engine.kind)
        asyncio.run(_serve(settings, console))
    except Unauthorized as error:
        raise ClientError(f"the cloud refuses the key in {settings.key_place}: {error}") from None
    except AlreadyConnected as error:
        raise ClientError(f"{settings.key_place}: {error}") from None
    except (OSError, ValueError) as error:
        raise ClientError(str(error)) from None


async def _serve(settings: DeviceProgram, console: Console) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    async with AsyncExitStack() as stack:
        with phases(console, time.monotonic()) as tell:
            tell("Starting")
            device = await stack.enter_async_context(running(settings, tell))
        explain(console, settings, device)
        stopped = loop.create_task(told.wait())
        await asyncio.wait((device.ended, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        console.print("Stopping")
        if device.ended.done():
            device.ended.result()


def explain(console: Console, settings: DeviceProgram, device: Running) -> None:
    """Print how to use the device."""
    own = f"{DeviceMode.name}, with its own model"
    modes = own if settings.bundle is None else f"{SplitMode.name}; while the cloud does not answer, {own}"
    console.print(f"The device's API: [bold]{device.address}/v1[/], model {settings.model!r}", soft_wrap=True)
    console.print(f"Requests that name no mode: {modes}; what they say stays here.", soft_wrap=True)
    if (split := device.split) is not None:
        console.print(
            f"It holds the first {split.first} of {split.layers} layers; from what leaves it, one who has the model "
            f"reads {recovery(split):.0%} of a prompt's tokens",
            soft_wrap=True,
        )
    console.print(
        f"The cloud: {settings.connect}, dialled again whenever the connection is lost", soft_wrap=True
    )
    console.print(f"Ask it: tandem chat --url {device.address}", soft_wrap=True)
    console.print("Stop it: Ctrl-C")
