"""The link between a device and the cloud: round-trip time, jitter and bandwidth, modelled and live.

The model is pure (times in, times out) and shared with the simulator. `Link` makes it live: whatever
travels through it is delivered when the model says so. A link belongs to a device, not to the connection
that many devices of one host share.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from random import Random

import msgspec

from tandem.cluster.link.state import LinkState
from tandem.cluster.link.timer import Timer, precise_timer

Trace = tuple[tuple[float, float], ...]


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Emulated properties of a link. Up is device to cloud, down is cloud to device.

    rtt_s: round-trip time without load, seconds; each direction takes half.
    rtt_trace: a round-trip time that changes, as (seconds since the link's start, rtt_s) in order, in place of
        the constant; the last one holds on.
    jitter_s: each frame's one-way delay varies uniformly by up to this much either way; at most rtt_s / 2.
    up_bytes_per_s, down_bytes_per_s: bandwidth; None is unlimited.
    up_trace, down_trace: bandwidth that changes, as (seconds since the link's start, bytes/s) in order, in
        place of the constant; the last rate holds on.
    seed: of the jitter and of losses.
    loss: share of frames that are lost, and sent again a round trip later.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    up_trace: Trace = ()
    down_trace: Trace = ()
    seed: int = 0
    rtt_trace: Trace = ()
    loss: float = 0.0

    def __post_init__(self) -> None:
        times = [t for t, _ in self.rtt_trace]
        if times and (times[0] != 0 or times != sorted(set(times))):
            raise ValueError("rtt_trace must begin at 0 and rise in time")
        least = min((rtt for _, rtt in self.rtt_trace), default=self.rtt_s)
        if min(least, self.rtt_s) < 0 or not 0 <= self.jitter_s <= least / 2:
            raise ValueError(
                f"rtt_s must be at least 0 and jitter_s between 0 and rtt_s / 2, "
                f"not {least} and {self.jitter_s}"
            )
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss must be at least 0 and below 1, not {self.loss}")
        for name, rate in (
            ("up_bytes_per_s", self.up_bytes_per_s),
            ("down_bytes_per_s", self.down_bytes_per_s),
        ):
            if rate is not None and rate <= 0:
                raise ValueError(f"{name} must be above 0, or null for no limit, not {rate}")
        for name, trace in (("up_trace", self.up_trace), ("down_trace", self.down_trace)):
            times = [t for t, _ in trace]
            if trace and (times[0] != 0 or times != sorted(set(times)) or trace[-1][1] <= 0):
                raise ValueError(f"{name} must begin at 0, rise in time and end with a rate above 0")
            if any(rate < 0 for _, rate in trace):
                raise ValueError(f"{name} must have no negative rates")

    @property
    def idle(self) -> bool:
        """Whether the link changes nothing."""
        return self == LinkProfile(seed=self.seed)


class LinkModel:
    """One direction of a link: a FIFO queue before a pipe of given rate, then a delay. Never reorders.

    sent_bytes: bytes handed over so far.
    waited_s: seconds that frames lost to bandwidth and to each other, beyond the link's own delay.
    """

    def __init__(
        self,
        delay_s: float | Trace,
        jitter_s: float,
        rate: float | Trace | None,
        seed: int,
        loss: float = 0.0,
    ) -> None:
        """delay_s: one way, seconds; or how it changes, as (seconds since the start, delay_s)."""
        changes = delay_s if isinstance(delay_s, tuple) else ((0.0, delay_s),)
        self._delay_s, self._delay_times = [d for _, d in changes], [t for t, _ in changes]
        self._jitter_s, self._loss = jitter_s, loss
        self._random = Random(seed).random if jitter_s or loss else None
        trace = rate if isinstance(rate, tuple) else ((0.0, rate),) if rate is not None else ()
        self._times = [t for t, _ in trace]
        self._rates = [r for _, r in trace]
        self._carried = [0.0]  # bytes the pipe can have carried by each time of the trace
        for i in range(1, len(trace)):
            self._carried.append(
                self._carried[-1] + self._rates[i - 1] * (self._times[i] - self._times[i - 1])
            )
        self._free_s = 0.0
        self._last_s = 0.0
        self.sent_bytes = 0
        self.waited_s = 0.0

    def arrival(self, now_s: float, size_bytes: int) -> float:
        """Return when a frame sent at `now_s` arrives, in seconds since the link's start.

        Calls must not go back in time.
        """
        sent_s = now_s
        if self._times:  # otherwise nothing queues
            sent_s = self._free_s = self._transmitted(max(now_s, self._free_s), size_bytes)
        delay_s = self._delay_s[0]
        if len(self._delay_s) > 1:
            delay_s = self._delay_s[bisect_right(self._delay_times, sent_s) - 1]
        if self._random is not None:
            way_s = delay_s
            delay_s += 2.0 * self._jitter_s * self._random() - self._jitter_s
            while self._loss and self._random() < self._loss:
                delay_s += 2.0 * way_s
        arrival_s = sent_s + delay_s
        if arrival_s < self._last_s:
            arrival_s = self._last_s
        self._last_s = arrival_s
        self.sent_bytes += size_bytes
        if (waited_s := arrival_s - now_s - delay_s) > 0.0:
            self.waited_s += waited_s
        return arrival_s

    def rate(self, now_s: float) -> float | None:
        """Return the bandwidth at a time, bytes/s; None: no limit."""
        return self._rates[bisect_right(self._times, now_s) - 1] if self._times else None

    def _transmitted(self, start_s: float, size_bytes: int) -> float:
        """Return when the last byte of a frame has left if its first may leave at `start_s`."""
        if size_bytes <= 0:
            return start_s
        i = bisect_right(self._times, start_s) - 1
        goal = self._carried[i] + self._rates[i] * (start_s - self._times[i]) + size_bytes
        j = max(i, bisect_left(self._carried, goal) - 1)  # the stretch in which the goal is reached
        left = goal - self._carried[j]
        return max(start_s, self._times[j] + (left / self._rates[j] if left > 0 else 0.0))


def up_model(profile: LinkProfile) -> LinkModel:
    """The direction from the device to the cloud."""
    rate = profile.up_trace or profile.up_bytes_per_s
    return LinkModel(_one_way(profile), profile.jitter_s, rate, profile.seed * 2, profile.loss)


def down_model(profile: LinkProfile) -> LinkModel:
    """The direction from the cloud to the device."""
    rate = profile.down_trace or profile.down_bytes_per_s
    return LinkModel(_one_way(profile), profile.jitter_s, rate, profile.seed * 2 + 1, profile.loss)


def _one_way(profile: LinkProfile) -> float | Trace:
    return tuple((t, rtt_s / 2) for t, rtt_s in profile.rtt_trace) or profile.rtt_s / 2


class Pipe:
    """One direction of a live link. Its time begins when it is made, or first used if no event loop runs then."""

    def __init__(self, model: LinkModel) -> None:
        self._model = model
        self._start_s = self._last_s = 0.0
        self._timer: Timer | None = None
        self._held: list[tuple[int, Callable[[], None], float]] | None = None
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            self._begin()

    def _begin(self) -> Timer:
        self._timer = precise_timer()
        self._start_s = self._timer.time()
        return self._timer

    @property
    def sent_bytes(self) -> int:
        """Bytes handed over so far."""
        return self._model.sent_bytes

    @property
    def waited_s(self) -> float:
        """Seconds that frames waited for bandwidth and each other, beyond the link's own delay."""
        return self._model.waited_s

    def book(self, size_bytes: int) -> float:
        """Return when a frame of this size sent now arrives, in the loop's time, without a callback."""
        timer = self._timer or self._begin()
        arrival_s = self._start_s + self._model.arrival(timer.time() - self._start_s, size_bytes)
        if arrival_s > self._last_s:
            self._last_s = arrival_s
        return self._last_s

    def carry(self, size_bytes: int, deliver: Callable[[], None], real_s: float = 0.0) -> None:
        """Call `deliver` on this event loop when a frame of this size has come through; in order.

        real_s: what the real path takes of the delay, which the emulation leaves out.
        """
        if self._held is not None:
            self._held.append((size_bytes, deliver, real_s))
            return
        timer = self._timer or self._begin()
        arrival_s = self._start_s + self._model.arrival(timer.time() - self._start_s, size_bytes) - real_s
        if arrival_s > self._last_s:
            self._last_s = arrival_s
        timer.call_at(self._last_s, deliver)

    @property
    def rate(self) -> float | None:
        """Bandwidth at this moment, bytes/s; None: no limit."""
        timer = self._timer or self._begin()
        return self._model.rate(timer.time() - self._start_s)

    def hold(self) -> None:
        """Keep what is to be carried from now on; what is under way arrives."""
        if self._held is None:
            self._held = []

    def release(self) -> None:
        """Carry what was kept, and what comes."""
        held, self._held = self._held or (), None
        for size_bytes, deliver, real_s in held:
            self.carry(size_bytes, deliver, real_s)

    def follow(self, model: LinkModel) -> None:
        """Go on as another model says, without overtaking what is under way."""
        model.sent_bytes, model.waited_s = self.sent_bytes, self.waited_s
        self._model = model
        if self._timer is not None:
            self._start_s = self._timer.time()


class Link:
    """A live link. The engine behind it is at its device end: requests travel down, replies up."""

    def __init__(self, profile: LinkProfile) -> None:
        self.profile = profile
        self.up = Pipe(up_model(profile))
        self.down = Pipe(down_model(profile))

    @property
    def state(self) -> LinkState:
        """Bandwidth and loss at this moment."""
        return LinkState(self.up.rate, self.down.rate, self.profile.loss)

    def change(self, profile: LinkProfile, cut: bool) -> None:
        """Take on other properties. A link that is cut keeps what it is given, until it is mended."""
        if profile != self.profile:
            self.profile = profile
            self.up.follow(up_model(profile))
            self.down.follow(down_model(profile))
        for pipe in (self.up, self.down):
            if cut:
                pipe.hold()
            else:
                pipe.release()
