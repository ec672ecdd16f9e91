"""Bills under killed processes: whether every answer is billed, and none twice.

    tandem benchmark bills [--answers 2000] [--clients 12]

The application with a null engine answers clients that have a key each and read one stream after the other, while the
processes of one kind are killed (SIGKILL) again and again, each time soon after the successor of the last one is there:
Access, which writes the ledger; the router; one of two replicas of the API. At the end of each part the ledger is
compared, key by key, with what the clients have read.

answers: streams that clients have read to their end.
lost: those of them that the ledger does not have.
twice: requests in the ledger beyond those that were sent; where no stream has broken, beyond those that were answered.
wrong_tokens: tokens in the ledger that are not those of its requests, where no stream has broken.
broken: streams that ended without their end, and requests that were refused.
kills: killed processes.
end_ms: from the last text to the end of a stream, which waits for its bill: median and 99th percentile while nothing
    is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.application import application
from tandem.benchmarks.robustness.load import REPLICA, processes

VICTIMS = ("Access", "Router", "Ingress")
TOKENS = 8
SETTINGS: dict[str, Any] = {
    "verifier": {"engine": {"kind": "null", "tokens_per_s": 200, "context": 2048}},
    "drafter": {"replicas": 0},
    "ingress_replicas": 2,
}
PAUSE_S = 1.0
"""Time that a successor lives at least, and between two requests of a client that was refused."""
LOOK_S = 0.2
QUIET_S = 2.0
"""Time within which bills of broken streams are booked, after the last one."""


@dataclass(slots=True)
class Client:
    """A client with a key. sent, read: its requests, and the streams that it has read to their end."""

    key: str
    secret: str
    sent: int = 0
    read: int = 0
    ends_s: list[float] = field(default_factory=list)

    async def ask(self, http: httpx.AsyncClient) -> None:
        """Read one answer. Raises httpx's errors."""
        body = {
            "model": "tandem",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self.sent += 1
        text_s = time.perf_counter()
        headers = {"authorization": f"Bearer {self.secret}"}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            if reply.status_code == httpx.codes.BAD_REQUEST:
                raise ValueError((await reply.aread()).decode())
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    self.read += 1
                    self.ends_s.append(time.perf_counter() - text_s)
                    return
                if line.startswith("data: "):
                    if "error" in json.loads(line.removeprefix("data: ")):
                        raise httpx.ReadError(line)
                    text_s = time.perf_counter()
        raise httpx.ReadError("the stream ended without its end")


@dataclass(slots=True)
class Tally:
    """The ledger compared with what the clients have read; fields as in the module's docstring."""

    answers: int = 0
    lost: int = 0
    twice: int = 0
    wrong_tokens: int = 0
    broken: int = 0
    kills: int = 0


async def clients(http: httpx.AsyncClient, number: int) -> tuple[str, list[Client]]:
    """Return an operator's secret, and clients with new keys."""
    operator = await _made(http, {}, {"name": "operator", "role": "operator"})
    admin = {"authorization": f"Bearer {operator['secret']}"}
    keys = [await _made(http, admin, {"name": f"client {n}"}) for n in range(number)]
    return operator["secret"], [Client(key["id"], key["secret"]) for key in keys]


async def _made(http: httpx.AsyncClient, headers: dict[str, str], form: dict[str, str]) -> dict[str, Any]:
    reply = await http.post("/v1/keys", json=form, headers=headers)
    reply.raise_for_status()
    made: dict[str, Any] = reply.json()
    return made


async def under_kills(
    http: httpx.AsyncClient,
    asking: Sequence[Client],
    answers: int,
    kill: Callable[[], Awaitable[None]] | None,
) -> int:
    """Have the clients read so many answers more, while `kill` is called again and again; return how often it was."""
    goal, kills = sum(client.read for client in asking) + answers, 0

    def enough() -> bool:
        return sum(client.read for client in asking) >= goal

    async def ask_on(client: Client) -> None:
        while not enough():
            try:
                await client.ask(http)
            except httpx.HTTPError:
                await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as reading:
        for client in asking:
            reading.create_task(ask_on(client))
        while kill is not None and not enough():
            await kill()
            kills += 1
    return kills


async def compared(http: httpx.AsyncClient, operator: str, asked: Sequence[Client], kills: int) -> Tally:
    """Return the tally of these clients."""
    await asyncio.sleep(QUIET_S)
    headers = {"authorization": f"Bearer {operator}"}
    reply = await http.get("/v1/usage", params={"by": "account"}, headers=headers)
    reply.raise_for_status()
    rows = {row["account"]: row for row in reply.json()["data"]}
    tally = Tally(kills=kills)
    for client in asked:
        row = rows.get(client.key, {"requests": 0, "server_tokens_out": 0})
        booked, broken = row["requests"], client.sent - client.read
        tally.answers += client.read
        tally.lost += max(0, client.read - booked)
        tally.twice += max(0, booked - client.sent)
        tally.wrong_tokens += 0 if broken else abs(row["server_tokens_out"] - TOKENS * booked)
        tally.broken += broken
    return tally


async def _kill(http: httpx.AsyncClient, deployment: str) -> None:
    """Kill a replica, and return when another one is there and everything is ready."""
    title = REPLICA.format(deployment)
    before = await asyncio.to_thread(processes, title)
    os.kill(before[0].pid, signal.SIGKILL)

    async def again() -> bool:
        after = set(await asyncio.to_thread(processes, title)) - {before[0]}
        with suppress(httpx.HTTPError):
            return len(after) >= len(before) and (await http.get("/readyz")).is_success
        return False

    while not await again():  # noqa: ASYNC110 (the processes are others')
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(PAUSE_S)


async def measure(address: tuple[str, int], answers: int, number: int) -> dict[str, Any]:
    """Measure part after part."""
    url, rows, tallies = "http://{}:{}".format(*address), [], []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        operator, asking = await clients(http, number)
        await under_kills(http, asking, 10 * number, None)
        ends_ms = [1e3 * end_s for client in asking for end_s in client.ends_s]
        for victim in VICTIMS:
            headers = {"authorization": f"Bearer {operator}"}
            made = [await _made(http, headers, {"name": f"{victim} {n}"}) for n in range(number)]
            asking = [Client(key["id"], key["secret"]) for key in made]

            async def kill(deployment: str = victim) -> None:
                await _kill(http, deployment)

            kills = await under_kills(http, asking, answers, kill)
            tallies.append(tally := await compared(http, operator, asking, kills))
            rows.append(
                (victim, *map(str, (tally.kills, tally.answers, tally.broken, tally.lost, tally.twice)))
            )
    columns = ("killed", "kills", "answers", "broken", "lost", "twice")
    report.table(f"{number} clients while processes are killed", columns, rows)
    return {
        "answers": sum(tally.answers for tally in tallies),
        "lost": sum(tally.lost for tally in tallies),
        "twice": sum(tally.twice for tally in tallies),
        "wrong_tokens": sum(tally.wrong_tokens for tally in tallies),
        "broken": sum(tally.broken for tally in tallies),
        "kills": sum(tally.kills for tally in tallies),
        "end_ms": [float(np.percentile(ends_ms, part)) for part in (50, 99)],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = report.parser("bills", __doc__)
    parser.add_argument("--answers", type=int, default=2000, help="in each part (%(default)s)")
    parser.add_argument("--clients", type=int, default=12, help="at once (%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, application(SETTINGS, Path(folder)) as address:
        report.figures("bills", asyncio.run(measure(address, options.answers, options.clients)))


if __name__ == "__main__":
    main()
