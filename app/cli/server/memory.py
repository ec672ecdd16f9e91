"""Memory that a deployment takes, before it is started on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tandem.app.cli.server.facts import Machine, inspect
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

GB = 1e9
BESIDE_BYTES = 1.5 * GB
"""Memory of Ray, Serve and the processes around the engines."""


def check_memory(settings: Settings, machine: Machine | None = None) -> None:
    """Check that weights and KV caches of models of one's own fit the memory that is free.

    Engines on GPUs are left out; so are embedded models, which are small. What is beside the engines may be swapped, so
    it alone refuses nothing. Raises ValueError with the arithmetic.
    """
    machine = machine or Machine.here()
    parts = {
        f"{where} ({count} × {engine.model})": count * _bytes(engine, machine)
        for where, count, engine in _on_cpu(settings)
        if not isinstance(engine, NullSettings | ServiceSettings) and engine.model not in family.NAMES
    }
    if sum(parts.values()) > machine.free_bytes:
        raise ValueError(
            f"{too_little(machine, parts)}. Choose smaller models, fewer kv_blocks or fewer replicas"
        )


def too_little(machine: Machine, parts: Mapping[str, float]) -> str:
    """Return the arithmetic of what is free and what is needed. parts: bytes by what needs them."""
    needed = BESIDE_BYTES + sum(parts.values())
    terms = " + ".join(f"{size / GB:.1f} GB of {what}" for what, size in parts.items())
    return (
        f"{machine.free_bytes / GB:.1f} GB of memory are free, and {needed / GB:.1f} GB are needed: "
        f"{BESIDE_BYTES / GB:.1f} GB beside the models + {terms}"
    )


def _on_cpu(settings: Settings) -> Iterator[tuple[str, int, AnySettings | MiddleSettings]]:
    """Yield the engines that start without a GPU: their place in the settings, and their number."""
    for where, pool in settings.placed_pools():
        count = pool.replicas if pool.replicas is not None else getattr(pool.autoscaling, "min_replicas", 1)
        if count and not pool.gpus:
            yield where, count, pool.engine
    for number, host in enumerate(settings.hosts):
        yield f"hosts[{number}]", 1, host.engines[0]


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
