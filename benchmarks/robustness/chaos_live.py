"""Every process of the application killed and stopped under load: what its clients notice.

    tandem benchmark chaos_live [--streams 32] [--only Verifier Router]

The application with the embedded models, two verifiers and two replicas of the API, under streams in all modes, some
with a device that dials in, and with the limits of production. One process after the other is killed (SIGKILL), and
stopped for a while (SIGSTOP, then SIGCONT); each time everything is ready again before the next one. A client whose
request is refused asks again for 30 s, one whose connection breaks comes back to its answer, and one that has read an
answer asks the next question. The program of the device
that dials in is started again when it has ended, as a service is.

failed: requests that got no answer.
broken_streams: answers that began and did not end well, or were not, token for token, what the target says by itself.
answers: that were read meanwhile.
longest_gap_s: longest time in which a client got no new text, the wait for the first included.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tandem.app.cli.server.local_ray import free_port
from tandem.app.cli.server.processes import Process
from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.robustness.dialled import DIALLED, LOOK_S, PROGRAM, READY_S, Site, dialling_in
from tandem.benchmarks.robustness.load import DEVICES, MODES, REPLICA, asking, processes, under_load

LOAD = [
    {**way, "resumable": True}
    for with_phone in ({"mode": "device", "device": DIALLED}, {"mode": "speculative", "device": DIALLED})
    for way in (*MODES, with_phone, *MODES[:2])
]
"""Ways of the streams in turn. Of 32 streams, each device has the four that it takes."""
VICTIMS = {
    **{
        name: REPLICA.format(name)
        for name in ("Verifier", "Drafter", "Ingress", "Router", "Access", "Scheduler", "Gateway")
    },
    "device host": "ray::DeviceHost",
    "dialled-in device": "\0".join(PROGRAM),
    "HAProxy": "haproxy",
    "Serve's controller": "ray::ServeController",
}
"""Titles of the processes, by their names."""
POOLS = {"verifier": 2, "drafter": 1}
"""Replicas of the pools."""
# Clients are programs, which read at once: every wait counts.
SETTINGS: dict[str, Any] = {
    "verifier": {"replicas": POOLS["verifier"], "engine": {"kind": "torch", "model": "target"}},
    "hosts": [{"name": "edge", "devices": [{"name": name, "link": {"rtt_ms": 5.0}} for name in DEVICES]}],
    "ingress_replicas": 2,
    "default_reader_rate": 0.0,
}
STOPPED_S = 8.0
"""Time for which a process is stopped."""
AGAIN_S = 30.0
"""Time for which a refused request is sent again."""


async def strike(site: Site, title: str, sign: signal.Signals) -> None:
    """Kill or stop a process of that title; return when everything is ready again. Raises RuntimeError if it is not."""
    before = await asyncio.to_thread(processes, title)
    if not before:
        raise RuntimeError(f"there is no process {title!r}")
    os.kill(before[0].pid, sign)
    if sign == signal.SIGSTOP:
        await asyncio.sleep(STOPPED_S)
        with suppress(ProcessLookupError):  # it was replaced meanwhile
            os.kill(before[0].pid, signal.SIGCONT)
    limit_s = time.monotonic() + READY_S
    while not await is_ready(site, title, before, sign):
        if time.monotonic() > limit_s:
            raise RuntimeError(f"nothing was ready again {READY_S:g} s after {title!r} got {sign.name}")
        await asyncio.sleep(LOOK_S)


async def is_ready(site: Site, title: str, before: list[Process], sign: signal.Signals) -> bool:
    """Return whether there are as many of them as before, and the application says that it is ready with all replicas,
    and has the device that dials in."""
    now = await asyncio.to_thread(processes, title)
    with suppress(httpx.HTTPError):
        reply = await site.cloud.get("/readyz", timeout=5.0)
        if not reply.is_success:  # HAProxy's own refusals are no JSON
            return False
        whole = len(now) >= len(before) and (sign == signal.SIGSTOP or before[0] not in now)
        told = reply.json()
        listed = all(told.get(pool, 0) >= count for pool, count in POOLS.items())
        return whole and listed and not told.get("missing") and await site.dialled_in()
    return False


async def measure(
    address: tuple[str, int], folder: Path, streams: int, victims: Sequence[str]
) -> dict[str, Any]:
    """Strike one process after the other. folder: for the files of the device that dials in."""
    rows, outcomes = [], []
    async with asking(address) as (http, right), dialling_in(http, folder) as site:
        strikes = [(name, sign) for name in victims for sign in (signal.SIGKILL, signal.SIGSTOP)]
        for name, sign in report.progress(strikes, "faults"):

            async def hit(title: str = VICTIMS[name], sign: signal.Signals = sign) -> None:
                await strike(site, title, sign)

            outcome = await under_load(http, streams, right, hit, AGAIN_S, LOAD)
            outcomes.append(outcome)
            for what in [*outcome.failures, *outcome.breaks]:
                print(f"{name}, {sign.name}: {what}")
            figures = (len(outcome.gaps_s), len(outcome.failures), len(outcome.breaks))
            gap_s = max(outcome.gaps_s, default=0.0)
            rows.append((name, sign.name, *map(str, figures), f"{gap_s:.1f}", outcome.longest))
            print(*rows[-1], sep=", ", flush=True)
    columns = ("process", "signal", "answers", "failed", "broken", "longest gap, s", "which")
    report.table(f"{streams} streams while processes are killed and stopped", columns, rows)
    return {
        "failed": sum(len(outcome.failures) for outcome in outcomes),
        "broken_streams": sum(len(outcome.breaks) for outcome in outcomes),
        "answers": sum(len(outcome.gaps_s) for outcome in outcomes),
        "longest_gap_s": max(gap_s for outcome in outcomes for gap_s in outcome.gaps_s),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = report.parser("chaos_live", __doc__)
    parser.add_argument("--streams", type=int, default=32, help="at once (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=VICTIMS, help="processes to strike")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        settings = SETTINGS | {
            "gateway": {"port": free_port(), "replicas": 2},
            "ledger": {"path": str(folder / "ledger.sqlite")},
        }
        with application(settings, folder) as address:
            figures = asyncio.run(measure(address, folder, options.streams, options.only or list(VICTIMS)))
        report.figures("chaos_live", figures)


if __name__ == "__main__":
    main()
