"""A process that simulates, and the events that it tells."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

WITHIN_S = 180.0
"""Most seconds that an experiment may take."""
WORKER = "tandem.app.api.experiments.worker"

Event = dict[str, Any]


async def simulated(order: Event) -> AsyncGenerator[Event, None]:
    """Yield the events of an order's simulations, of which the last is "done", "refused" or "failed"; closing the
    generator ends the process."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WITHIN_S
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                yield _failed(f"it took longer than {WITHIN_S:g} s")
                return
            if not line:
                yield _failed("its process ended: it took too much time or memory")
                return
            event: Event = json.loads(line)
            yield event
            if event["type"] in ("done", "refused"):
                return
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _failed(why: str) -> Event:
    return {"type": "failed", "message": f"the experiment failed: {why}"}
