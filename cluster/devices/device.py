"""A device: an engine slowed to the speed of other hardware, with an account of its energy."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from tandem.cluster.devices.processor import Processor, ProcessorJob
from tandem.cluster.devices.profile import DeviceSpeed
from tandem.cluster.devices.record import DeviceRecord
from tandem.engine.base import (
    Draft,
    Engine,
    EngineError,
    EngineInfo,
    EngineStats,
    EngineStopped,
    Extend,
    Forward,
    NoCapacity,
    Operation,
    Sampling,
    Session,
    SessionCancelled,
    Tokens,
    Verify,
)
from tandem.engine.sessions.session import BaseSession

T = TypeVar("T")

BLOCK = 16
"""Tokens: prefixes are shared in whole blocks, as engines do."""


class Device:
    """The Engine protocol over an engine that devices may share, at the speed of other hardware.

    An emulated device does one job at a time: prefill of n tokens or decoding of n tokens occupies it for as long as
    `speed` says, or as the engine really takes, whichever is longer; but it decodes up to `speed.batch` sequences at
    once. A prefix that its emulated KV cache has is not computed again, whatever the engine has of it. A native one
    runs at the engine's own speed. It closes its sessions, not the engine. An empty one is stopped.
    """

    def __init__(self, engine: Engine, speed: DeviceSpeed) -> None:
        self.speed = speed
        self.processor = Processor(not speed.emulated, speed.batch)
        self.counters = EngineStats(emulated=speed.emulated)
        self._engine = engine
        self._sessions: dict[DeviceSession, None] = {}
        self._last_prompt: tuple[int, ...] = ()  # prompt whose session has ended
        self._stopped = False

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def sessions(self) -> int:
        """Sessions that it works on now."""
        return len(self._sessions)

    @property
    def energy_j(self) -> float:
        """Joules spent so far."""
        return self.processor.busy_s * self.speed.power_w

    @property
    def battery(self) -> float | None:
        """Share of the battery that is left; None on mains."""
        if self.speed.battery_wh is None:
            return None
        return max(0.0, 1.0 - self.energy_j / (3600.0 * self.speed.battery_wh))

    def check(self) -> None:
        """Raise EngineStopped if the device is closed."""
        if self._stopped:
            raise EngineStopped("the device is closed")
        if self.battery == 0.0:
            raise EngineStopped("the device's battery is empty")

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> DeviceSession:
        return await self.begin(self.admit(prompt, log), prompt, sampling, log)

    def admit(self, prompt: Sequence[int], log: Sequence[int]) -> DeviceSession:
        """Give a new session a place and return it. Raises EngineStopped, NoCapacity."""
        self.check()
        if len(self._sessions) >= self.speed.sessions:
            raise NoCapacity(f"the device works on {self.speed.sessions} sessions at most")
        session = DeviceSession(self, prompt, log)
        self._sessions[session] = None
        return session

    async def begin(
        self, session: DeviceSession, prompt: Sequence[int], sampling: Sampling, log: Sequence[int]
    ) -> DeviceSession:
        """Open the session at its engine."""
        try:
            await session.admit(await self._engine.open(prompt, sampling, log))
        except BaseException:
            self.forget(session)
            raise
        self.counters.opened += 1
        return session

    def remove(self, session: DeviceSession) -> None:
        """Free the place of a session that has ended, and count it."""
        if self.forget(session):
            self.counters.cancelled += not session.finished
            self.counters.finished += session.finished

    def forget(self, session: DeviceSession) -> bool:
        """Free the session's place; return whether it had one."""
        if self._sessions.pop(session, self) is not None:
            return False
        if session.prefilled:
            self._last_prompt = session.prompt
        return True

    def cached_prefix(self, prompt: tuple[int, ...]) -> int:
        """Tokens of a prompt's prefix in the emulated KV cache, which keeps the prompts of all sessions, and that of
        the last one to end."""
        kept = [session.prompt for session in self._sessions if session.prefilled]
        return max(shared_prefix(prompt, other) for other in (*kept, self._last_prompt))

    def record(self, name: str, address: str = "", rtt_s: float = 0.0) -> DeviceRecord:
        """Return its state, for a registry."""
        speed = self.speed
        return DeviceRecord(
            name=name,
            address=address,
            profile=speed.name,
            model=self.info.model,
            vocabulary=self.info.vocabulary,
            rtt_s=rtt_s,
            sessions=self.sessions,
            opened=self.counters.opened,
            capacity=speed.sessions,
            battery=self.battery,
            emulated=speed.emulated,
            prefill_token_s=speed.prefill_s(1),
            decode_token_s=speed.decode_s(1, 0),
            prefill_j=speed.power_w * speed.prefill_s(1),
            decode_j=speed.power_w * speed.decode_s(1, 0),
            energy_j=round(self.energy_j, 3),
            continuation=self.info.continuation,
        )

    async def stats(self) -> EngineStats:
        self.counters.sessions = len(self._sessions)
        self.counters.running = sum(session.busy for session in self._sessions)
        self.counters.step_s, self.counters.energy_j = self.processor.busy_s, self.energy_j
        return copy.copy(self.counters)

    def reopen(self) -> None:
        """Take sessions again after `close`."""
        self._stopped = False

    async def close(self) -> None:
        self._stopped = True
        for session in list(self._sessions):
            await session.end(EngineStopped("the device is closed"))


class DeviceSession(BaseSession):
    """A session of a device.

    finished: its engine has said that the output is at its end.
    prefilled: its prompt is in the KV cache.
    _output: what the device has seen of it.
    _pending: tokens of it not yet computed; they are, and take their time, with the next operation.
    """

    def __init__(self, device: Device, prompt: Sequence[int], log: Sequence[int]) -> None:
        super().__init__(device.info)
        self._device, self._speed, self._processor = device, device.speed, device.processor
        self._inner: Session | None = None
        self.finished = self.prefilled = False
        self.prompt, self._output, self._pending = tuple(prompt), list(log), 0
        self._prefill: ProcessorJob | None = None

    async def admit(self, inner: Session) -> None:
        """Take over the engine's session and begin the prefill."""
        self._inner = inner
        if self._ended is not None:  # the device was closed meanwhile
            await inner.cancel()
            self._check()
        if self._speed.emulated:
            self._prefill = ProcessorJob(self._begin_prefill)
            self._processor.start(self._prefill)
        else:
            self._count_prefill(len(self.prompt) + len(self._output) - 1)

    def _begin_prefill(self) -> None:
        timer, cached = self._processor.timer, self._device.cached_prefix(self.prompt)
        self._device.counters.tokens_from_prefix += cached
        tokens = len(self.prompt) + len(self._output) - cached
        timer.call_at(timer.time() + self._speed.prefill_s(tokens), partial(self._end_prefill, tokens - 1))

    def _end_prefill(self, tokens: int) -> None:
        job = self._prefill
        assert job is not None
        if not job.over:
            self.prefilled = True
            self._count_prefill(tokens)
            self._processor.finish(job)

    def _count_prefill(self, tokens: int) -> None:
        self._device.counters.tokens_prefilled += max(0, tokens)  # a forward session's prompt is empty

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        self._begin("generate")
        assert self._inner is not None
        try:
            async with aclosing(self._inner.generate()) as stream:
                while True:
                    tokens = await self._compute(stream.__anext__, self._generated, decodes=True)
                    self._device.counters.tokens_generated += len(tokens.ids)
                    self.finished = tokens.finish is not None
                    yield tokens
                    if tokens.finish is not None:
                        return
        finally:
            self._finish()

    def _generated(self, tokens: Tokens, sequences: int) -> float:
        seconds = self._decode_s(len(tokens.ids), sequences)
        self._output += tokens.ids
        return seconds

    async def _run(self, operation: Operation[Any]) -> Any:
        assert self._inner is not None
        work, timer = partial(self._inner.call, operation), self._processor.timer
        if isinstance(operation, Extend):
            await work()
            self._replace(operation.position, operation.ids)
            return None
        began_s = timer.time()
        seconds = partial(self._computed, operation)
        result = await self._compute(work, seconds, decodes=isinstance(operation, Draft))
        counters = self._device.counters
        match operation:
            case Verify(drafts):
                self.finished = result.finish is not None
                counters.tokens_verified += len(drafts)
                counters.tokens_accepted += result.accepted
                counters.tokens_generated += len(result.ids)
            case Draft():
                counters.tokens_drafted += len(result.ids)
                result.took_s = timer.time() - began_s
            case Forward():
                result.batch_s = max(result.batch_s, self._pass_s(operation.taken_in))
                result.took_s = timer.time() - began_s
        return result

    def _computed(self, operation: Operation[Any], result: Any, sequences: int) -> float:
        """Add a result to the output, and return the seconds for which it occupies the processor."""
        match operation:
            case Forward():
                return self._pass_s(operation.taken_in)
            case Verify(drafts):  # one forward pass over several positions: a short prefill
                seconds = self._pass_s(self._take_pending() + len(drafts) + 1)
            case Draft(position, confirmed):
                self._replace(position, confirmed)
                seconds = self._decode_s(len(result.ids), sequences)
        self._output += result.ids
        return seconds

    async def cancel(self) -> None:
        await self.end()

    async def end(self, error: EngineError | None = None) -> None:
        """Cancel the session; what runs raises `error`, by default SessionCancelled."""
        if not self._end(error):
            return
        self._device.remove(self)
        if self._prefill is not None:
            self._processor.finish(self._prefill)
        inner, self._inner = (
            self._inner,
            None,
        )  # a timer may hold this session for a while yet, not the engine
        if inner is not None:
            await inner.cancel()

    def _begin(self, operation: str) -> None:
        self._device.check()
        super()._begin(operation)

    async def _compute(
        self, work: Callable[[], Awaitable[T]], seconds: Callable[[T, int], float], decodes: bool = False
    ) -> T:
        """Do `work` when its turn has come; it occupies the processor for at least `seconds` of its result and of as
        many sequences as are decoded."""
        job = ProcessorJob(decodes=decodes)
        try:
            self._processor.start(job)
            if job.start_s is None:
                await self._wait(job.notify)
            assert job.start_s is not None
            result = await work()
            timer, end_s = self._processor.timer, job.start_s + seconds(result, job.sequences)
            if timer.time() < end_s:
                await self._wait(partial(timer.call_at, end_s))
            return result
        except SessionCancelled:
            self._check()  # why it was
            raise
        finally:
            self._processor.finish(job)

    def _replace(self, position: int, tokens: Sequence[int]) -> None:
        """Set the output from `position` on; what differs from before is to be computed."""
        old = self._output[position:]
        same = next((i for i, (a, b) in enumerate(zip(old, tokens, strict=False)) if a != b), None)
        if same is not None or len(tokens) != len(old):
            self.finished = False
        self._pending += len(tokens) - (min(len(old), len(tokens)) if same is None else same)
        self._output[position:] = tokens

    def _take_pending(self) -> int:
        """Return the number of tokens to compute, and count them as computed."""
        pending, self._pending = self._pending, 0
        return pending

    def _decode_s(self, tokens: int, sequences: int) -> float:
        """Return the seconds of decoding. Its first step takes in the last pending token, a prefill those before."""
        before = self._take_pending() - 1
        decode_s = self._speed.decode_s(tokens, len(self.prompt) + len(self._output), sequences)
        if before <= 0:
            return decode_s
        self._count_prefill(before)
        return decode_s + self._speed.prefill_s(before)

    def _pass_s(self, positions: int) -> float:
        """Return the seconds of a pass over several positions: a short prefill, but at least a decoding step."""
        step_s = self._speed.decode_s(1, len(self.prompt) + len(self._output))
        return max(step_s, self._speed.prefill_s(positions))


def shared_prefix(prompt: Sequence[int], other: Sequence[int]) -> int:
    """Return the tokens of the prefix that both share in whole blocks, without the prompt's last one, whose logits are
    wanted."""
    tokens = max(0, min(len(prompt) - 1, len(other))) // BLOCK * BLOCK
    blocks = range(0, tokens, BLOCK)
    return next((i for i in blocks if prompt[i : i + BLOCK] != other[i : i + BLOCK]), tokens)
