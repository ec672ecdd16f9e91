"""Parallel map of a function as Ray tasks on all cores; resumable if its results are kept."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tandem.cluster.own_ray import reaped

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

CHUNK = 8  # items a task: a task costs about a millisecond


def ray_map(function: Callable[[T], R], items: Iterable[T], chunk: int = CHUNK) -> Iterator[R]:
    """Yield the function of every item, as they complete; re-raises the first error of the function.

    Uses the Ray that is running in this process, else starts one for its duration.
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


class ForeignFile(ValueError):
    """A file that does not hold such results, and is left unchanged."""


def resumable_map(
    function: Callable[[T], R],
    items: Mapping[K, T],
    key: Callable[[R], K],
    kind: type[R],
    file: Path | None,
    chunk: int = CHUNK,
) -> Iterator[R]:
    """Yield as `ray_map` does, and keep the results in a file, a line each, so that it resumes after an interruption.
    Results found there come first; the file's results of other items stay.

    items: by key.
    key: key of a result.
    kind: type of the results, for msgspec.
    file: None to keep nothing.
    Raises ForeignFile.
    """
    found = {} if file is None else {known: one for one in _read(file, kind) if (known := key(one)) in items}
    yield from found.values()
    left = [item for known, item in items.items() if known not in found]
    if not left:
        return
    for result in ray_map(function, left, chunk):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as lines:
                lines.write(msgspec.json.encode(result) + b"\n")
        yield result


def _read(file: Path, kind: type[R]) -> list[R]:
    """Return earlier results; a line cut off by an interruption is removed."""
    if not file.exists():
        return []
    whole, newline, rest = file.read_bytes().rpartition(b"\n")
    results = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            results.append(msgspec.json.decode(line, type=kind))
        except msgspec.MsgspecError as error:
            raise ForeignFile(f"{file}, line {number}: {error}; name another file") from None
    first: Any = msgspec.inspect.type_info(kind)
    begins = f'{{"{first.fields[0].encode_name}":'.encode()
    if rest[: len(begins)] != begins[: len(rest)]:
        raise ForeignFile(f"{file}, line {len(results) + 1}: this is no such line; name another file")
    if rest:
        os.truncate(file, len(whole + newline))
    return results


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
        with reaped():
            ray.shutdown()
