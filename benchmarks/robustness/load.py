"""Streams in all modes, whose answers are checked token for token while something happens to the application."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tandem.app.cli.server.processes import Process, descendants
from tandem.app.cli.server.proxy.stand_in import COPY

PROMPTS = (
    "Tell me about the town of Marworth.",
    "What do people eat there?",
    "Compare two machines.",
    "Who lives in Dunmere?",
)
Way = Mapping[str, Any]
"""Way in which an answer is asked for: the `tandem` object of its request."""
DEVICES = ("laptop", "notebook", "tablet")
MODES: tuple[Way, ...] = (
    {"mode": "cloud"},
    {"mode": "speculative"},
    {"mode": "speculative", "device": "laptop"},
    {"mode": "device", "device": "notebook"},
    {"mode": "race", "device": "tablet"},
)
"""Modes of the streams in turn: no device has more than it takes."""
LOSSLESS = ("cloud", "speculative", "split")
"""Modes in which the target decides on every token."""
TOKENS = 160
AGAIN_S = 0.1
"""Pause before a refused question is asked again."""
BACK_S = 30.0
"""Longest that a client tries to come back to an answer."""
SILENCE_S = 1.75
"""Seconds without a sign of life after which it does so, or asks anew."""
LOAD_S = 3.0  # before the first change, and after the last


@dataclass(slots=True)
class Outcome:
    """Outcome of the requests.

    failures, breaks: errors of requests without an answer, and of broken answers.
    waited_s: for the first text of each answer, refused attempts included.
    gaps_s: longest time without new text of each answer, the wait for its first and its end included.
    longest: the way of the answer with the longest of these, and its refusals.
    """

    failures: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    longest: str = ""

    def came(self, how: Way, read: Read, refused_s: float, refusal: str) -> None:
        """Record an answer. refused_s: for how long it was refused before; refusal: the last one in words."""
        gap_s = max(refused_s + read.first_s, read.gap_s)
        if gap_s >= max(self.gaps_s, default=0.0):
            way = " ".join(how[part] for part in ("mode", "device") if part in how)
            self.longest = f"{way}, refused for {refused_s:.1f} s: {refusal}" if refusal else way
        self.waited_s.append(refused_s + read.first_s)
        self.gaps_s.append(gap_s)


class Read(NamedTuple):
    """An answer that was read to its end. first_s: until its first text; gap_s: longest time without new text."""

    text: str
    first_s: float
    gap_s: float


class Broken(Exception):
    """An answer began and did not end as it should."""


async def answer(http: httpx.AsyncClient, prompt: str, how: Way) -> Read:
    """Read an answer; come back to a resumable one whose connection breaks. Raises Broken, and httpx's errors if none
    began."""
    body = {
        "model": "tandem",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "tandem": dict(how),
    }
    reading, broke_s = _Reading(), 0.0
    limits = httpx.Timeout(120.0, read=SILENCE_S if how.get("resumable") else 120.0)
    while reading.finish is None:
        headers = {"Last-Event-ID": reading.event} if reading.event else {}
        try:
            asked = http.stream("POST", "/v1/chat/completions", json=body, headers=headers, timeout=limits)
            async with asked as reply:
                if reply.is_error:
                    await reply.aread()
                    raise httpx.HTTPStatusError(
                        f"{reply.status_code} {reply.text}", request=reply.request, response=reply
                    )
                broke_s = 0.0
                async for line in reply.aiter_lines():
                    reading.take(line)
        except httpx.HTTPError as error:
            if not reading.begun:
                raise
            broke_s = broke_s or time.perf_counter()
            if not (how.get("resumable") and reading.event) or time.perf_counter() - broke_s > BACK_S:
                raise Broken(f"{how}: {error!r} after {len(reading.text)} characters") from None
            await asyncio.sleep(AGAIN_S)
        except _Refused as error:
            if how.get("resumable") and not reading.event:  # told so late that it could be no status
                raise httpx.HTTPError(str(error)) from None
            raise Broken(f"{how}: {error}") from None
        else:
            if reading.finish is None:
                raise Broken(f"{how}: it ended without saying why")
    return Read(reading.text, reading.first_s, reading.gap_s)


class _Refused(Exception):
    """An error that came as an event."""


class _Reading:
    """An answer as far as it is read. begun: whether something has come; event: id of the last event, if it has one;
    finish: why it ended; the rest as in Read."""

    def __init__(self) -> None:
        self.text, self.event, self.begun = "", "", False
        self.finish: str | None = None
        self.first_s = self.gap_s = 0.0
        self._began_s = self._last_s = time.perf_counter()

    def take(self, line: str) -> None:
        """Take a line of its events. Raises _Refused."""
        if line.startswith(":"):
            return
        self.begun = self.begun or bool(line)
        if line.startswith("id: "):
            self.event = line.removeprefix("id: ")
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise _Refused(event["error"]["message"])
        for choice in event["choices"]:
            now_s = time.perf_counter()
            if piece := choice["delta"].get("content"):
                self.first_s = self.first_s or now_s - self._began_s
                self.text += piece
            self.finish = choice["finish_reason"] or self.finish
            if piece or self.finish:
                self.gap_s, self._last_s = max(self.gap_s, now_s - self._last_s), now_s


@asynccontextmanager
async def asking(address: tuple[str, int]) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """Connect to the application; yield a client that keeps no connections, and the target's answers by prompt."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        base_url="http://{}:{}".format(*address), timeout=120, limits=limits
    ) as http:
        yield http, {prompt: (await answer(http, prompt, MODES[0])).text for prompt in PROMPTS}


async def ask_on(
    http: httpx.AsyncClient, how: Way, right: dict[str, str], outcome: Outcome, again_s: float
) -> None:
    """Ask one question after the other, until cancelled. again_s: how long a refused one is asked again."""
    for prompt in itertools.cycle(PROMPTS):
        began_s, refusal = time.perf_counter(), ""
        try:
            while True:
                refused_s = time.perf_counter() - began_s
                try:
                    read = await answer(http, prompt, how)
                    break
                except httpx.HTTPError as error:
                    refusal = str(error) or repr(error)
                    if refused_s >= again_s:
                        raise
                await asyncio.sleep(AGAIN_S)
        except Broken as broken:
            outcome.breaks.append(str(broken))
        except httpx.HTTPError as error:
            outcome.failures.append(f"{how}: {error or repr(error)}")
        else:
            outcome.came(how, read, refused_s, refusal)
            if how["mode"] in LOSSLESS and read.text != right[prompt]:
                outcome.breaks.append(f"{how}: another answer: {read.text!r} for {right[prompt]!r}")


async def under_load(
    http: httpx.AsyncClient,
    streams: int,
    right: dict[str, str],
    during: Callable[[], Awaitable[None]],
    again_s: float = 0.0,
    modes: Sequence[Way] = MODES,
) -> Outcome:
    """Return the outcome of the requests sent during an operation. again_s: as in ask_on; modes: streams' own."""
    outcome, each = Outcome(), itertools.islice(itertools.cycle(modes), streams)
    asking = [asyncio.create_task(ask_on(http, how, right, outcome, again_s)) for how in each]
    try:
        await asyncio.sleep(LOAD_S)
        await during()
        await asyncio.sleep(LOAD_S)
    finally:
        for task in asking:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*asking)
    return outcome


REPLICA = "ray::ServeReplica:tandem:{}"
"""Title of a deployment's replicas."""


def processes(title: str, of: int | None = None) -> list[Process]:
    """Return the descendants of a process, by default of this one, whose command line begins with a title, or whose
    program is called so; without stand-ins, which go when Ray's own processes are back."""
    found = []
    for process in descendants(of):
        with suppress(OSError):
            said = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace")
            called = said.startswith(title) or Path(said.split("\0")[0]).name == title
            if called and COPY not in said:
                found.append(process)
    return found
