"""A device in virtual time: a small model, and the link between it and the cloud."""

from __future__ import annotations

from collections import deque

from cluster.link import LinkProfile, down_model, up_model
from cluster.simulator.core import Event
from cluster.simulator.hardware import StepTimer
from policies.cost import PerToken

HEADER_BYTES = 24  # of a frame on the wire: length, session, sequence number, tag
TOKEN_BYTES = 3  # a token id as the wire packs it


def frame_bytes(tokens: int) -> int:
    """Size of a frame that carries so many token ids."""
    return HEADER_BYTES + TOKEN_BYTES * tokens


class SimulatedLink:
    """Both directions of a device's link; the same model as the live link's, and an account of what it did.

    sent_bytes: handed over, either way. waited_s: what frames lost to bandwidth and to each other, beyond
    the link's own delay.
    """

    __slots__ = ("_delay_s", "_down", "_up", "sent_bytes", "waited_s")

    def __init__(self, profile: LinkProfile) -> None:
        self._up, self._down = up_model(profile), down_model(profile)
        self._delay_s = profile.rtt_s / 2
        self.sent_bytes = 0
        self.waited_s = 0.0

    def up(self, now_s: float, tokens: int) -> float:
        """When a frame of so many tokens that leaves the device at `now_s` is in the cloud."""
        return self._carry(self._up, now_s, tokens)

    def down(self, now_s: float, tokens: int) -> float:
        """When a frame of so many tokens that leaves the cloud at `now_s` is at the device."""
        return self._carry(self._down, now_s, tokens)

    def _carry(self, model, now_s: float, tokens: int) -> float:  # type: ignore[no-untyped-def]
        size = HEADER_BYTES + TOKEN_BYTES * tokens
        self.sent_bytes += size
        arrival_s: float = model.arrival(now_s, size)
        self.waited_s += max(0.0, arrival_s - now_s - self._delay_s)
        return arrival_s


class Device:
    """Holds up to `sessions` requests at once, further ones wait in order of arrival; its processor does one
    job at a time. power_w: drawn while computing, watts."""

    __slots__ = ("_free_s", "_holds", "_sessions", "_timer", "_waiting", "link", "name", "power_w")

    def __init__(
        self, name: str, timer: StepTimer, link: SimulatedLink, sessions: int = 1, power_w: float = 0.0
    ) -> None:
        self.name, self.link, self.power_w = name, link, power_w
        self._timer, self._sessions = timer, sessions
        self._holds = 0
        self._free_s = 0.0
        self._waiting: deque[Event] = deque()

    def acquire(self) -> Event:
        """Fires when the device has a place for this request."""
        event = Event()
        if self._holds == self._sessions:
            self._waiting.append(event)
        else:
            self._holds += 1
            event.fire()
        return event

    def release(self) -> None:
        """The request is done with the device."""
        if self._waiting:
            self._waiting.popleft().fire()
        else:
            self._holds -= 1

    def occupy(self, start_s: float, seconds: float) -> float:
        """Do a job that may begin at `start_s`; returns when it is done. Jobs are done in the order asked."""
        self._free_s = max(start_s, self._free_s) + seconds
        return self._free_s

    def abandon(self, now_s: float, done_s: float) -> None:
        """Give up the job that would be done at `done_s`. Jobs behind it keep the times they were promised."""
        if self._free_s == done_s > now_s:
            self._free_s = now_s

    def prefill_s(self, tokens: int) -> float:
        """Seconds to take in `tokens` tokens."""
        return self._timer.step_s(tokens, 1, 0, ((tokens, 0),)) if tokens else 0.0

    def decode_s(self, tokens: int, context: int) -> float:
        """Seconds to produce `tokens` tokens one by one after `context`."""
        return tokens * self._timer.step_s(1, 1, context + tokens // 2)

    def joules(self) -> PerToken:
        """What a token costs it, of those that it takes in and of those that it gives out."""
        return PerToken(self.power_w * self.prefill_s(64) / 64, self.power_w * self.decode_s(1, 64))
