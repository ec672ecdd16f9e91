"""State monitoring: load of the cloud, and speed of a device and its link.

HAT (Xie et al. 2025), section 3.2. There is one monitor per cloud and one per device, shared by their requests, which
record what they measure. It is sent to other processes as its `memory`; if several processes measure, the latest wins:
a moving average forgets within about ten samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.policies.estimators.moving_average import MovingAverage, moved
from tandem.policies.estimators.step_time import StepTimeModel, StepTimes

MUCH_BYTES = 16_384
"""Transfers of fewer bytes measure the latency, not the bandwidth."""


@dataclass(frozen=True, slots=True)
class LinearDelay:
    """Seconds as a line in tokens: base_s + token_s · tokens, with neither below 0."""

    base_s: float
    token_s: float

    def __call__(self, tokens: float) -> float:
        return self.base_s + self.token_s * tokens


class MovingDelay:
    """g: seconds of a batch by its tokens, interpolated between and beyond the sizes seen.

    HAT's equation (2) updates g at one size and says nothing of the others. Here they follow in proportion: the line
    through the last hundred batches (`policies.estimators.step_time`) is g's shape, and the equation moves its level,
    so that it holds exactly at the size seen. A line alone, decaying as fast, would fit its slope to five samples.

    base_s, token_s: the line assumed before the first batch.
    """

    __slots__ = ("_level", "_line")

    def __init__(self, base_s: float = 5e-3, token_s: float = 1e-4) -> None:
        self._line, self._level = StepTimeModel(base_s, token_s), 1.0

    def note(self, tokens: int, seconds: float) -> None:
        """Record a batch of `tokens`, at least one."""
        moved_s = moved(self(tokens), seconds) if self._line.seen else seconds
        self._line.note(tokens, seconds)
        self._level = moved_s / self._line.step_s(tokens)

    def __call__(self, tokens: float) -> float:
        return self._level * self._line.step_s(tokens)

    @property
    def line(self) -> LinearDelay:
        return LinearDelay(self._level * self._line.base_s, self._level * self._line.token_s)

    @property
    def memory(self) -> tuple[float, ...]:
        """The whole state, as numbers."""
        return (self._level, *self._line.snapshot())

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._level, seen, base_s, token_s, *sums = memory
        self._line = StepTimeModel(base_s, token_s)
        self._line.adopt(StepTimes(int(seen), base_s, token_s, *sums))


class CloudMonitor:
    """Monitor of the cloud's part of the model.

    g: delay of a batch by its tokens.
    """

    __slots__ = ("_mu", "_overhead", "g")

    def __init__(self) -> None:
        self.g = MovingDelay()
        self._mu, self._overhead = MovingAverage(), MovingAverage()

    def note_batch(self, tokens: int, seconds: float) -> None:
        """Record a batch with `tokens`, this request's included: μ̂ and η̂ of HAT's equations (1) and (2)."""
        self._mu.note(tokens)
        self.g.note(tokens, seconds)

    def note_overhead(self, seconds: float) -> None:
        """Record by how much a round took longer than its link and batch."""
        self._overhead.note(max(0.0, seconds))

    @property
    def mu(self) -> float:
        """μ: tokens in a batch; 0 before the first."""
        return self._mu.value

    @property
    def overhead_s(self) -> float:
        """Seconds of a round beyond link and batch: waiting for the batch before, and the device's head."""
        return self._overhead.value

    @property
    def memory(self) -> tuple[float, ...]:
        return (*self._mu.memory, *self._overhead.memory, *self.g.memory)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._mu.memory, self._overhead.memory = (memory[0], memory[1]), (memory[2], memory[3])
        self.g.memory = memory[4:]


class DeviceMonitor:
    """Monitor of a device and its link.

    draft_s: γ: seconds of a drafting step, by the number of branches that it drafts at once.
    up_bytes_s, down_bytes_s, rtt_s: link assumed before the first measurement: HAT's middle (section 4.1).
    """

    __slots__ = ("_down", "_rtt", "_up", "draft_s")

    def __init__(self, up_bytes_s: float = 7.5e6, down_bytes_s: float = 12.5e6, rtt_s: float = 0.0) -> None:
        if not (up_bytes_s > 0 and down_bytes_s > 0):
            raise ValueError(f"bandwidths must be above 0 bytes/s, not {up_bytes_s} and {down_bytes_s}")
        self.draft_s = MovingDelay()
        self._up, self._down = MovingAverage(up_bytes_s), MovingAverage(down_bytes_s)
        self._rtt = MovingAverage(rtt_s)

    def note_draft(self, branches: int, seconds: float) -> None:
        self.draft_s.note(branches, seconds)

    def note_up(self, sent_bytes: float, seconds: float) -> None:
        """Record an upload, without the link's latency; one of zero duration is ignored."""
        if sent_bytes > 0 and seconds > 0:
            self._up.note(sent_bytes / seconds)

    def note_down(self, sent_bytes: float, seconds: float) -> None:
        """Record a download, likewise."""
        if sent_bytes > 0 and seconds > 0:
            self._down.note(sent_bytes / seconds)

    def note_crossing(self, up_bytes: float, down_bytes: float, seconds: float) -> None:
        """Record the bytes of a round trip, latency included, whose two ways cannot be told apart. Large ones update
        the bandwidths, by equal factors; small ones the latency."""
        up_s, down_s = up_bytes / self.up_bytes_s, down_bytes / self.down_bytes_s
        if up_bytes + down_bytes < MUCH_BYTES:
            self.note_rtt(max(0.0, seconds - up_s - down_s))
            return
        slower = (seconds - self.rtt_s) / (up_s + down_s)
        self.note_up(up_bytes, slower * up_s)
        self.note_down(down_bytes, slower * down_s)

    def note_rtt(self, seconds: float) -> None:
        """Record a round trip of next to no bytes."""
        self._rtt.note(seconds)

    @property
    def up_bytes_s(self) -> float:
        """β_up, bytes/s."""
        return self._up.value

    @property
    def down_bytes_s(self) -> float:
        """β_down, bytes/s."""
        return self._down.value

    @property
    def rtt_s(self) -> float:
        """Latency of the link, both ways, seconds."""
        return self._rtt.value

    @property
    def memory(self) -> tuple[float, ...]:
        return (*self._up.memory, *self._down.memory, *self._rtt.memory, *self.draft_s.memory)

    @memory.setter
    def memory(self, memory: tuple[float, ...]) -> None:
        self._up.memory, self._down.memory = (memory[0], memory[1]), (memory[2], memory[3])
        self._rtt.memory, self.draft_s.memory = (memory[4], memory[5]), memory[6:]
