"""A function over many items as Ray tasks, on as many cores as there are."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 8  # items a task: a task costs about a millisecond


def ray_map(function: Callable[[T], R], items: Iterable[T], chunk: int = CHUNK) -> Iterator[R]:
    """The function of every item, as they are done. An error of the function ends it and is raised here.

    Uses the Ray that is running in this process, else one of its own for as long as it lasts.
    """

    def work(part: Sequence[T]) -> list[R]:
        return [function(item) for item in part]

    waiting = iter(items)
    with _ray() as ray:
        task = ray.remote(work)
        ahead = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: list[Any] = []
        while True:
            while len(running) < ahead and (part := list(itertools.islice(waiting, chunk))):
                running.append(task.remote(part))
            if not running:
                return
            (ready,), running = ray.wait(running, num_returns=1)
            try:
                yield from ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None


@contextmanager
def _ray() -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # Ray's name for: loopback only
    import ray

    if ray.is_initialized():
        yield ray
        return
    ray.init(address="local", include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield ray
    finally:
        ray.shutdown()
