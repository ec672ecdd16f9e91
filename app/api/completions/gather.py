"""Runs the jobs of one request concurrently and collects their text into chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType

from tandem.app.api.completions.choice import Choice, ChoicePiece
from tandem.app.api.reader.pacing import paced
from tandem.deployments.request.job import Delta, Job
from tandem.engine.base import EngineStopped

RunJob = Callable[[Job], AsyncGenerator[Delta, None]]

CLOSING_S = 1.0
"""Longest that an answer's end waits for its jobs to close: an endpoint of theirs may be gone."""


class ChunkCoalescer:
    """Limits the chunks that all streams of a process send together.

    A chunk costs the same whether it holds one token or ten. So the open streams share a budget of `chunks_per_s`: a
    lone stream sends every token as it comes, and the interval between chunks grows with the number of streams.
    """

    def __init__(self, chunks_per_s: float = 1000.0) -> None:
        self.chunks_per_s = chunks_per_s
        self.streams = 0

    def interval_s(self) -> float:
        """Return the seconds between two chunks of one stream at the present load."""
        return self.streams / self.chunks_per_s


class Gather:
    """Runs one job for each choice, inside `async with`; leaving it cancels the jobs that still run.

    paced: choices get their tokens no faster than their reader takes them in.
    over: called once, when all jobs have ended, with whether all were complete; before any client
        is given the last piece then.
    """

    def __init__(
        self,
        run: RunJob,
        jobs: Sequence[Job],
        choices: Sequence[Choice],
        coalescer: ChunkCoalescer,
        paced: bool = False,
        over: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self.choices, self._paced, self._over = choices, paced, over
        self._generating, self._finished = set(range(len(jobs))), True
        self._run, self._jobs, self._coalescer = run, jobs, coalescer
        self._pumps: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = 0.0  # loop time of the next chunk; ends and errors do not wait for it
        self._error: Exception | None = None

    async def __aenter__(self) -> Gather:
        self._coalescer.streams += 1
        self._loop = asyncio.get_running_loop()
        for number, (job, choice) in enumerate(zip(self._jobs, self.choices, strict=True)):
            pump = asyncio.create_task(self._pump(number, job, choice))
            pump.add_done_callback(partial(self._ended, number, False))
            self._pumps.append(pump)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._coalescer.streams -= 1
        if self._timer:
            self._timer.cancel()
        for pump, choice in zip(self._pumps, self.choices, strict=True):
            if choice.finish is None:  # the pumps of finished choices close their job already
                pump.cancel()

    async def batches(self) -> AsyncIterator[list[tuple[int, ChoicePiece]]]:
        """Yield (choice, piece) pairs: the first at once, later ones collected for an interval.

        Raises a job's error, after the pieces before it.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            if self._timer:
                self._timer.cancel()
                self._timer = None
            batch = [(i, piece) for i, choice in enumerate(self.choices) if (piece := choice.take())]
            if batch:
                yield batch
                self._next_s = self._loop.time() + self._coalescer.interval_s()
            if self._error:
                raise self._error
            if all(choice.finish for choice in self.choices):
                return

    async def closed(self) -> None:
        """Return when all jobs have reported what they used, or take too long to come to their end."""
        if self._pumps:
            await asyncio.wait(self._pumps, timeout=CLOSING_S)

    def _ended(self, number: int, finished: bool, _: object = None) -> None:
        """Record the end of a job. finished: whether it was complete."""
        if number in self._generating:
            self._generating.remove(number)
            self._finished = self._finished and finished
            if not self._generating:
                self._over(self._finished)

    async def _ends_noted(
        self, number: int, deltas: AsyncGenerator[Delta, None]
    ) -> AsyncGenerator[Delta, None]:
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.finish:
                    self._ended(number, finished=True)
                yield delta

    async def _pump(self, number: int, job: Job, choice: Choice) -> None:
        if choice.finish:  # another replica of the API has given it out
            self._ended(number, finished=True)
            self._notify(urgent=True)
            return
        try:
            source = self._run(job)
            if self._paced:
                noted = choice.arrivals.noted(source)
                source = paced(self._ends_noted(number, noted), job.sampling.reader_rate)
            async with aclosing(source) as deltas:
                async for delta in deltas:
                    if not self._paced:
                        choice.arrivals.note(len(delta.ids), self._loop.time())
                    choice.push(delta)
                    if delta.finish:
                        self._ended(number, finished=True)
                    self._notify(urgent=choice.finish is not None)
                    if choice.finish:
                        return
            raise EngineStopped("the answer ended without a finish reason")
        except Exception as error:
            self._error = self._error or error
            self._notify(urgent=True)

    def _notify(self, urgent: bool) -> None:
        loop = self._loop
        if urgent or loop.time() >= self._next_s:
            self._news.set()
        elif self._timer is None and not self._news.is_set():
            self._timer = loop.call_at(self._next_s, self._news.set)
