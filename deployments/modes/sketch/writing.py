"""Writing: the target's own parts of mode sketch, with the cloud's drafter where there is one, as in mode speculative.

The window policy decides how much is drafted, if anything: sketches and answers in full go as fast as the target can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tandem.deployments.modes.base import ModeRun, decode
from tandem.deployments.modes.sketch.questions import SketchBriefing
from tandem.deployments.modes.speculative.mode import PairBriefing, Speculation, SpeculativeMode
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.session import EndpointSessions
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.policies.estimators.moving_average import MovingAverage


class Writer:
    """Writes for one request.

    pace_s: seconds that the target has taken for a token of it; 0: not known yet.
    """

    def __init__(self, speculation: SpeculativeMode, seen_s: MovingAverage) -> None:
        """seen_s: seconds that it has taken in all requests."""
        self.pace_s = 0.0
        self._speculation, self._seen_s = speculation, seen_s
        self._pair: PairBriefing | None = None
        self._runs: list[ModeRun] = []

    def assigned(self, sessions: EndpointSessions, briefing: object) -> None:
        """Take over an assignment."""
        self._sessions = sessions
        self._pair = briefing.pair if isinstance(briefing, SketchBriefing) else None

    @property
    def speculates(self) -> bool:
        """Whether there is a drafter."""
        return self._pair is not None

    @property
    def drafts(self) -> tuple[int, int]:
        """Return how many tokens were drafted so far, and how many of them accepted."""
        figures = [run.figures for run in self._runs if isinstance(run.figures, Speculation)]
        return sum(each.drafted for each in figures), sum(each.accepted for each in figures)

    async def write(self, job: Job, written: Sequence[int]) -> AsyncGenerator[Delta, None]:
        """Continue an answer to that job, counting its tokens from 0. It ends early if it is closed."""
        log, now_s = TokenLog(), asyncio.get_running_loop().time
        log.append(0, list(written), [Origin.CLOUD] * len(written))
        await self.stop()
        if self._pair is None:
            stream = decode(self._sessions["target"], Origin.CLOUD, job, log)
        else:
            run = self._speculation.start(job)
            self._runs.append(run)
            stream = run.run(self._sessions, log, self._pair)
        first_s, count = 0.0, 0
        try:
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    if count:
                        self.pace_s = (now_s() - first_s) / count
                    else:
                        first_s = now_s()
                    count += len(delta.ids)
                    log.append(delta.position, delta.ids, delta.origins)
                    yield delta
        finally:
            if self.pace_s:
                self._seen_s.note(self.pace_s)

    async def stop(self) -> None:
        """End the sessions, so that others can be opened."""
        for role in ("target", "drafter"):
            if (session := self._sessions.get(role)) is not None:
                await session.cancel()

    def report(self) -> list[object]:
        """Return what is learnt about the pair, as `SpeculativeRouter.learn` takes it."""
        return [taught for run in self._runs for taught in run.report() or ()]  # type: ignore[attr-defined]
