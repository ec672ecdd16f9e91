"""Language models served from the edge and the cloud together, on one answer.

    import tandem

    with tandem.start() as server:                       # Ray and Tandem on this machine
        answer = server.client().ask("Tell me about the town of Marworth.", mode="speculative")
        for text, origin in answer.pieces:
            print(origin, text)

    result = tandem.simulate("pool.yaml")                # the application in virtual time
    result.frame()                                       # a row for each request
    tandem.sweep("pool.yaml", {"window.name": ["static", "awc"]})
    tandem.mode_map("pool.yaml", {"workload.arrival.users": [10, 150]})   # which mode is the best where
    tandem.policy("window", "awc")                       # a decision by itself
    tandem.read_trace("requests.csv")                    # requests of one's own to simulate

Modules: `race`, `sketch` and `split` have what policies of these modes decide on, and the modes' algorithms by
themselves; `reader` judges answers by how they come, `hardware` tells how long steps take, and `models` has the paths
of the embedded models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.engine import family as models
    from tandem.engine.text.tokenizer import Tokenizer
    from tandem.policies import race, reader, sketch, split
    from tandem.simulator import hardware
    from tandem.app.cli.server.up import UpError
    from tandem.app.client.client import Answer, Client, Piece, Stream
    from tandem.app.client.http import ClientError
    from tandem.app.sdk.server import Server, start
    from tandem.app.sdk.simulation import mode_map, simulate, sweep
    from tandem.policies.base import UnknownPolicy, families, policy
    from tandem.simulator.config.errors import ConfigError
    from tandem.simulator.results.analysis import Result
    from tandem.simulator.results.plot import plot
    from tandem.simulator.workload import Request, TraceError, read_trace

_HOMES = {
    "tandem.app.cli.server.up": ("UpError",),
    "tandem.app.client.client": ("Answer", "Client", "Piece", "Stream"),
    "tandem.app.client.http": ("ClientError",),
    "tandem.app.sdk.server": ("Server", "start"),
    "tandem.app.sdk.simulation": ("mode_map", "simulate", "sweep"),
    "tandem.engine.text.tokenizer": ("Tokenizer",),
    "tandem.policies.base": ("UnknownPolicy", "families", "policy"),
    "tandem.simulator.config.errors": ("ConfigError",),
    "tandem.simulator.results.analysis": ("Result",),
    "tandem.simulator.results.plot": ("plot",),
    "tandem.simulator.workload": ("Request", "TraceError", "read_trace"),
}
"""Modules of the public names. They are imported when asked for: `tandem.policies` needs neither Ray nor torch."""
_MODULES = {
    "hardware": "tandem.simulator.hardware",
    "models": "tandem.engine.family",
    "race": "tandem.policies.race",
    "reader": "tandem.policies.reader",
    "sketch": "tandem.policies.sketch",
    "split": "tandem.policies.split",
}
"""Modules that are public as a whole, by their public names."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - by what they are for
    "start", "Server", "Client", "Stream", "Answer", "Piece", "UpError", "ClientError",
    "simulate", "sweep", "mode_map", "Result", "plot", "ConfigError",
    "policy", "families", "UnknownPolicy", "race", "reader", "sketch", "split",
    "Request", "read_trace", "TraceError", "hardware",
    "models", "Tokenizer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'tandem' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
