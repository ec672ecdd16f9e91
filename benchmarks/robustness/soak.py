"""Four times the capacity for a while: what still comes through, and whether anything grows.

    tandem benchmark soak [--minutes 10] [--steady 60]

The application with the embedded models, under streams in all modes. Clients are doubled until neither twice nor four
times as many bring a tenth more answers, which is the capacity; so many ask for a quarter of the time, then four times
as many. A client that has read an answer asks the next question, and repeats a refused one. What is refused is no
failure, what is broken or never comes is. The clients share the machine with the application.

capacity: clients at capacity.
goodput_ratio: whole answers a second under four times the load, as a share of those under the load.
memory_growth: of all the application's processes together, from the third quarter of the overload to the last one.
descriptors_growth, threads_growth: of file descriptors and threads, likewise. (asyncio's tasks cannot be seen from
    outside; sessions_left are those that replicas still count afterwards.)
steady_memory_growth, …: the same at 0.7 times the capacity.
failed, broken_streams: answers that did not come, or not well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import httpx

from tandem.app.cli.server.processes import Process
from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.robustness.load import DEVICES, LOAD_S, asking, processes, under_load

FIRST, MOST = 4, 256
"""Clients to begin with, and the most."""
GAIN, LOOK_S = 1.1, 10.0
"""Factor by which twice as many clients must bring more, and seconds of each look."""
LOOKS = 4
"""Factor on the best number of clients up to which more are looked at."""
FACTOR, STEADY = 4, 0.7
"""Loads, as factors on the capacity."""
SETTINGS: dict[str, Any] = {
    "verifier": {"engine": {"kind": "torch", "model": "target"}},
    "hosts": [{"name": "edge", "devices": [{"name": name} for name in DEVICES]}],
}
PARTS = "ray::ServeReplica:tandem", "ray::DeviceHost"
"""Beginnings of the titles of the application's processes."""
GAUGES = "vllm:num_requests_running{", "vllm:num_requests_waiting{"
SAMPLE_S = 2.0
AGAIN_S = 120.0
"""Longest that a refused question is asked again."""
SETTLED_S = 5.0
"""Pause after the load, before what is left is counted."""


class Sample(NamedTuple):
    """Sum over the application's processes. memory: proportional set size, bytes."""

    memory: int
    descriptors: int
    threads: int


def held(parts: Sequence[Process]) -> Sample:
    """Return what these processes hold; nothing of those that have ended meanwhile."""
    memory = descriptors = threads = 0
    for part in parts:
        folder = Path(f"/proc/{part.pid}")
        with suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            memory += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
            descriptors += len(list((folder / "fd").iterdir()))
            threads += len(list((folder / "task").iterdir()))
    return Sample(memory, descriptors, threads)


def growth(values: Sequence[float]) -> float:
    """Return by which share the mean of the last quarter exceeds that of the third one."""
    quarter = len(values) // 4
    if not quarter:
        raise ValueError("there are fewer than four samples: measure for longer")
    before, last = mean(values[-2 * quarter : -quarter]), mean(values[-quarter:])
    return last / before - 1


async def sampled(seconds: float, samples: list[Sample]) -> None:
    """Take samples of the application's processes for so long."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        parts = [process for title in PARTS for process in processes(title)]
        samples.append(await asyncio.to_thread(held, parts))
        await asyncio.sleep(SAMPLE_S)


async def sessions(http: httpx.AsyncClient) -> int:
    """Return the sessions that replicas have, running or waiting."""
    reply = await http.get("/metrics")
    lines = [line for line in reply.text.splitlines() if line.startswith(GAUGES)]
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


async def most_useful(rate: Callable[[int], Awaitable[float]]) -> int:
    """Return the number of clients at which neither two nor four times as many bring more: a look by itself may have
    come at a bad time. rate: answers a second of so many."""
    clients = best = FIRST
    most = await rate(best)
    while clients < min(MOST, LOOKS * best):
        clients *= 2
        if (answers := await rate(clients)) >= GAIN * most:
            best, most = clients, answers
    return best


def grown(samples: Sequence[Sample]) -> dict[str, float]:
    """Return by which share each quantity has grown; see `growth`."""
    return {
        "memory_growth": growth([sample.memory for sample in samples]),
        "descriptors_growth": growth([sample.descriptors for sample in samples]),
        "threads_growth": growth([sample.threads for sample in samples]),
    }


async def measure(address: tuple[str, int], minutes: float, steady: float = 0.0) -> dict[str, Any]:
    """Find the capacity, then measure at it, for so many minutes beyond it, and for so many of steady load."""
    rows, outcomes, samples = [], [], list[Sample]()
    async with asking(address) as (http, right):

        async def rate(clients: int, seconds: float = LOOK_S) -> float:
            samples.clear()
            outcome = await under_load(http, clients, right, lambda: sampled(seconds, samples), AGAIN_S)
            outcomes.append(outcome)
            for what in [*outcome.failures, *outcome.breaks]:
                print(f"{clients} clients: {what}")
            answers = len(outcome.waited_s) / (seconds + 2 * LOAD_S)
            rows.append((f"{clients}", f"{answers:.2f}", f"{max(outcome.waited_s, default=0.0):.1f}"))
            return answers

        capacity = await most_useful(rate)
        within = await rate(capacity, minutes * 15)
        beyond = await rate(FACTOR * capacity, minutes * 60)
        changes = grown(samples)
        if steady:
            await rate(max(1, round(STEADY * capacity)), steady * 60)
            changes |= {f"steady_{name}": share for name, share in grown(samples).items()}
        await asyncio.sleep(SETTLED_S)
        left = await sessions(http)
    report.table("Capacity and overload", ("clients", "answers/s", "longest wait, s"), rows)
    return {
        "capacity": capacity,
        "goodput_ratio": beyond / within,
        **changes,
        "sessions_left": left,
        "failed": sum(len(outcome.failures) for outcome in outcomes),
        "broken_streams": sum(len(outcome.breaks) for outcome in outcomes),
        "answers": sum(len(outcome.waited_s) for outcome in outcomes),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = report.parser("soak", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload (%(default)s)")
    parser.add_argument(
        "--steady", type=float, default=0.0, help="minutes of 0.7 times the capacity after it"
    )
    options = parser.parse_args(arguments)
    with application(SETTINGS) as address:
        report.figures("soak", asyncio.run(measure(address, options.minutes, options.steady)))


if __name__ == "__main__":
    main()
