"""Memory that a deployment takes, before it is started on this machine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.app.cli.server.facts import Machine, inspect
from tandem.app.cli.server.processes import Process
from tandem.deployments.pools.engines import (
    AnySettings,
    MiddleSettings,
    NullSettings,
    ServiceSettings,
    TorchSettings,
    context_of,
)
from tandem.engine import family

if TYPE_CHECKING:
    from tandem.app.settings import Settings  # needs Ray, which is not on devices
    from tandem.deployments.pools.device_hosts import HostSettings

GB = 1e9
BESIDE_BYTES = 1.5 * GB
"""Memory of Ray, Serve and the processes around the engines."""


def check_memory(settings: Settings, machine: Machine | None = None, running: Settings | None = None) -> None:
    """Check that weights and KV caches of models of one's own fit the memory that is free.

    Engines on GPUs are left out; so are embedded models, which are small. What is beside the engines may be swapped, so
    it alone refuses nothing.

    running: what these settings replace, which holds its memory until its successors answer: device hosts with the same
        settings stay, and a pool takes `surge_percent` of itself in addition, or what it grows by.

    Raises ValueError with the arithmetic.
    """
    machine = machine or Machine.here()
    before = {} if running is None else {part.where: part for part in _on_cpu(running)}
    parts = {}
    for part in _on_cpu(settings, () if running is None else running.hosts):
        each = _bytes(part.engine, machine)
        size = part.count * each
        if part.where in before:
            held = before[part.where].count * _bytes(before[part.where].engine, machine)
            size = max(math.ceil(part.count * part.surge_percent / 100) * each, size - held)
        parts[f"{part.where} ({part.count} × {part.model})"] = size
    if sum(parts.values()) > machine.free_bytes:
        raise ValueError(
            f"{too_little(machine, parts)}. Choose smaller models, fewer kv_blocks or fewer replicas"
        )


REPLICA, HOST = "ray::ServeReplica:", "ray::DeviceHost"
"""Beginnings of the names of processes: of replicas, before application and deployment, and of device hosts."""


def in_use(processes: Iterable[Process]) -> dict[str, float]:
    """Return the bytes of memory that processes take, by deployment; "devices" for device hosts, "Ray" for all else.

    What several processes share counts once in all (PSS): `ps` shows a little more, as it counts that in each (RSS).
    """
    found: dict[str, float] = defaultdict(float)
    for process in processes:
        with suppress(OSError, StopIteration):  # it has ended since
            name = Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace").split("\0")[0].strip()
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            size = 1024.0 * int(next(line for line in rollup if line.startswith("Pss:")).split()[1])
            who = name.split(":")[-1] if name.startswith(REPLICA) else "Ray"
            found["devices" if name.startswith(HOST) else who] += size
    return found


def shown(used: Mapping[str, float]) -> str:
    """Return in words how much memory is in use, and by what, the most first; small parts are one."""
    large = sorted((part for part in used.items() if part[1] >= 0.25 * GB), key=lambda part: -part[1])
    small = sum(size for _, size in used.items() if size < 0.25 * GB)
    parts = [f"{name} {size / GB:.1f}" for name, size in large] + [f"other replicas {small / GB:.1f}"]
    return f"{sum(used.values()) / GB:.1f} GB ({', '.join(parts)})"


def too_little(machine: Machine, parts: Mapping[str, float]) -> str:
    """Return the arithmetic of what is free and what is needed. parts: bytes by what needs them."""
    needed = BESIDE_BYTES + sum(parts.values())
    terms = " + ".join(f"{size / GB:.1f} GB of {what}" for what, size in parts.items())
    return (
        f"{machine.free_bytes / GB:.1f} GB of memory are free, and {needed / GB:.1f} GB are needed: "
        f"{BESIDE_BYTES / GB:.1f} GB beside the models + {terms}"
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Engines of one kind that start without a GPU.

    where: their place in the settings.
    surge_percent: how many more of them there are during an update.
    """

    where: str
    count: int
    engine: AnySettings | MiddleSettings
    surge_percent: int = 100

    @property
    def model(self) -> str:
        """Model of the engines; "" if it is none of one's own."""
        if isinstance(self.engine, NullSettings | ServiceSettings) or self.engine.model in family.NAMES:
            return ""
        return self.engine.model


def _on_cpu(settings: Settings, kept: Collection[HostSettings] = ()) -> Iterator[_Part]:
    """Yield the engines with models of one's own that start without a GPU. kept: device hosts that need not start."""
    for where, pool in settings.placed_pools():
        count = pool.replicas if pool.replicas is not None else getattr(pool.autoscaling, "min_replicas", 1)
        part = _Part(where, count, pool.engine, pool.surge_percent)
        if count and not pool.gpus and part.model:
            yield part
    for number, host in enumerate(settings.hosts):
        part = _Part(f"hosts[{number}]", 1, host.engines[0])
        if host not in kept and part.model:
            yield part


def _bytes(engine: AnySettings | MiddleSettings, machine: Machine) -> float:
    """Return the memory of an engine's weights and KV cache."""
    assert not isinstance(engine, NullSettings | ServiceSettings)
    precision = engine.dtype if isinstance(engine, TorchSettings) else "auto"
    facts = inspect(engine.model, machine, engine.kind, precision)
    if isinstance(engine, MiddleSettings):
        share = 1 - engine.first / facts.layers
        return share * (facts.weight_bytes + engine.kv_tokens * facts.kv_token_bytes)
    if isinstance(engine, TorchSettings) and engine.memory_fraction is not None:
        tokens = context_of(engine)
    else:
        tokens = engine.kv_tokens or 0
        if isinstance(engine, TorchSettings) and engine.host_memory is not None:
            tokens += engine.host_memory.blocks * engine.block_size
    return facts.weight_bytes + tokens * facts.kv_token_bytes
