"""A device: an engine slowed to the speed of other hardware, with an account of its energy."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from random import getrandbits
from typing import Any, TypeVar, cast

from cluster.profile import DeviceProfile
from cluster.timer import precise_timer
from engine.base import (
    Draft,
    DraftProbs,
    Engine,
    EngineInfo,
    EngineStats,
    EngineStopped,
    InvalidRequest,
    NoCapacity,
    Sampling,
    SessionCancelled,
    Tokens,
    UnknownSession,
    Verdict,
)

T = TypeVar("T")


class _Session:
    """id: at the engine, which other devices share; output: what the device has seen of it; pending: tokens
    of it not yet computed."""

    def __init__(self, output: Sequence[int]) -> None:
        self.id = getrandbits(63)
        self.output = list(output)
        self.pending = 0
        self.cancelled = False
        self.prefill: asyncio.Task[None] | None = None
        self.running: asyncio.Task[Any] | None = None

    def replace(self, position: int, tokens: Sequence[int]) -> None:
        """Set the output from `position` on; what differs from before is to be computed."""
        old = self.output[position:]
        same = next((i for i, (a, b) in enumerate(zip(old, tokens, strict=False)) if a != b), None)
        self.pending += len(tokens) - (min(len(old), len(tokens)) if same is None else same)
        self.output[position:] = tokens

    def take_pending(self) -> int:
        """The tokens to compute, which thereby are."""
        pending, self.pending = self.pending, 0
        return pending


class Device:
    """The Engine protocol over an engine that devices may share, at the speed of a profile.

    An emulated device does one job at a time: prefill of n tokens or decoding of n tokens occupies it for
    as long as the profile says, or as the engine really takes, whichever is longer. A native one runs at
    the engine's own speed. It closes its sessions, not the engine.

    energy_j: joules spent so far; battery: share of it left, None on mains. An empty device is stopped.
    """

    def __init__(self, engine: Engine, profile: DeviceProfile) -> None:
        self.profile = profile
        self.energy_j = 0.0
        self._engine = engine
        self._processor = asyncio.Lock()  # first come, first served
        self._sessions: dict[int, _Session] = {}
        self._stats = EngineStats(emulated=profile.emulated)
        self._jobs = 0
        self._since_s = self._busy_s = 0.0
        self._stopped = False

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def battery(self) -> float | None:
        if self.profile.battery_wh is None:
            return None
        return max(0.0, 1.0 - self.energy_j / (3600.0 * self.profile.battery_wh))

    async def open(
        self, session: int, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> None:
        self._alive()
        if session in self._sessions:
            raise InvalidRequest(f"session {session} is already open")
        if len(self._sessions) >= self.profile.sessions:
            raise NoCapacity(f"the device works on {self.profile.sessions} sessions at most")
        s = self._sessions[session] = _Session(log)
        try:
            await self._engine.open(s.id, prompt, sampling, log)
        except BaseException:
            self._sessions.pop(session, None)
            await self._engine.cancel(s.id)  # where the wait was cancelled it may have been admitted
            raise
        if s.cancelled:
            await self._engine.cancel(s.id)
            raise SessionCancelled(f"session {session} was cancelled")
        self._stats.opened += 1
        self._stats.tokens_prefilled += len(prompt) + len(log)
        if self.profile.emulated:
            seconds = self.profile.prefill_s(len(prompt) + len(log))
            s.prefill = asyncio.get_running_loop().create_task(self._work(_nothing, lambda _: seconds))

    async def generate(self, session: int) -> AsyncIterator[Tokens]:
        s = self._get(session)
        async with aclosing(cast(AsyncGenerator[Tokens, None], self._engine.generate(s.id))) as stream:
            while True:
                tokens = await self._run(s, lambda: anext(stream), lambda t: self._decode_s(s, len(t.ids)))
                s.output += tokens.ids
                self._stats.tokens_generated += len(tokens.ids)
                yield tokens
                if tokens.finish is not None:
                    return

    async def verify(self, session: int, drafts: Sequence[int], probs: DraftProbs | None = None) -> Verdict:
        s = self._get(session)

        def seconds(_: Verdict) -> float:  # one forward pass over several positions: a short prefill
            return max(self.profile.decode_s(1), self.profile.prefill_s(s.take_pending() + len(drafts) + 1))

        verdict = await self._run(s, lambda: self._engine.verify(s.id, drafts, probs), seconds)
        s.output += verdict.ids
        self._stats.tokens_verified += len(drafts)
        self._stats.tokens_accepted += verdict.accepted
        self._stats.tokens_generated += len(verdict.ids)
        return verdict

    async def draft(self, session: int, position: int, tokens: Sequence[int], window: int) -> Draft:
        s = self._get(session)

        def seconds(draft: Draft) -> float:
            s.replace(position, tokens)
            return self._decode_s(s, len(draft.ids))

        draft = await self._run(s, lambda: self._engine.draft(s.id, position, tokens, window), seconds)
        s.output += draft.ids
        self._stats.tokens_drafted += len(draft.ids)
        return draft

    async def extend(self, session: int, position: int, tokens: Sequence[int]) -> None:
        s = self._get(session)
        await self._engine.extend(s.id, position, tokens)
        s.replace(position, tokens)  # computed, and paid for, with the next operation

    async def cancel(self, session: int) -> None:
        if (s := self._sessions.pop(session, None)) is None:
            return
        self._stats.cancelled += 1
        s.cancelled = True
        for task in (s.prefill, s.running):
            if task is not None:
                task.cancel()
        await self._engine.cancel(s.id)

    async def stats(self) -> EngineStats:
        self._stats.sessions = self._stats.running = len(self._sessions)
        self._stats.step_s, self._stats.energy_j = self._busy_s, self.energy_j
        return copy.copy(self._stats)

    async def close(self) -> None:
        self._stopped = True
        for session in list(self._sessions):
            await self.cancel(session)

    def _get(self, session: int) -> _Session:
        self._alive()
        if (s := self._sessions.get(session)) is None:
            raise UnknownSession(f"no session {session} is open")
        return s

    def _alive(self) -> None:
        if self._stopped:
            raise EngineStopped("the device is closed")
        if self.battery == 0.0:
            raise EngineStopped("the device's battery is empty")

    def _decode_s(self, s: _Session, tokens: int) -> float:
        """Decoding takes the last pending token in with its first step; those before it are prefill."""
        return self.profile.prefill_s(max(0, s.take_pending() - 1)) + self.profile.decode_s(tokens)

    async def _run(self, s: _Session, work: Callable[[], Awaitable[T]], seconds: Callable[[T], float]) -> T:
        """Do a session's work in a task of its own, so that `cancel` can end it at any moment."""
        s.running = task = asyncio.get_running_loop().create_task(self._after_prefill(s, work, seconds))
        try:
            return await task
        except asyncio.CancelledError:
            if s.cancelled:
                reason = EngineStopped("the device is closed") if self._stopped else None
                raise reason or SessionCancelled("the session was cancelled") from None
            raise

    async def _after_prefill(
        self, s: _Session, work: Callable[[], Awaitable[T]], seconds: Callable[[T], float]
    ) -> T:
        if s.prefill is not None and not s.prefill.done():
            await asyncio.wait((s.prefill,))
        return await self._work(work, seconds)

    async def _work(self, work: Callable[[], Awaitable[T]], seconds: Callable[[T], float]) -> T:
        """Do the work, which occupies the device for at least `seconds` of its result."""
        if not self.profile.emulated:
            with self._computing():
                return await work()
        async with self._processor:
            with self._computing():
                start_s = time.monotonic()
                result = await work()
                await precise_timer().sleep_until(start_s + seconds(result))
                return result

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Account for the time in which at least one job runs, and for its energy."""
        if self._jobs == 0:
            self._since_s = time.monotonic()
        self._jobs += 1
        try:
            yield
        finally:
            self._jobs -= 1
            if self._jobs == 0:
                busy_s = time.monotonic() - self._since_s
                self._busy_s += busy_s
                self.energy_j += busy_s * self.profile.power_w


async def _nothing() -> None:
    pass
