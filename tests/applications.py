"""Applications on the Ray of these tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray import serve

from tandem.app.main import build
from tandem.app.settings import Settings
from tests.conftest import Running


@contextmanager
def deployed(settings: dict[str, Any], name: str, application: Running) -> Iterator[str]:
    """Deploy another application beside `application`, with its token; yields the address of its API.

    Its replicas are not waited for at the end: those of the API take requests for `haproxy.DRAINING_S` more.
    """
    deploy({"endpoint": {"token": application.token}} | settings, name)
    yield f"{application.address}/{name}"
    serve.delete(name, _blocking=False)


def deploy(settings: dict[str, Any], name: str) -> None:
    """Deploy an application, with one replica of its API unless the settings say otherwise, or replace what has this
    name, as `serve deploy` does it. Returns when it runs."""
    settings = {"ingress_replicas": 1} | settings
    serve.run(build(Settings.model_validate(settings)), name=name, route_prefix=f"/{name}")


def actors(prefix: str) -> dict[str, Any]:
    """The actors whose names begin with this, by name."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {
        actor["name"]: ray.get_actor(actor["name"], namespace=actor["namespace"])
        for actor in named
        if actor["name"].startswith(prefix)
    }


def replicas(name: str, deployment: str) -> dict[str, Any]:
    """The replicas of an application's deployment, by name."""
    return actors(f"SERVE_REPLICA::{name}#{deployment}#")


async def until(met: Callable[[], Awaitable[object]], within_s: float = 60.0) -> float:
    """Ask again and again until it holds; returns the seconds that it took. Fails after `within_s`."""
    began_s = time.monotonic()
    while not (found := await met()):
        assert time.monotonic() - began_s < within_s, f"{found!r}, not within {within_s:g} s"
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s
