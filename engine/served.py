"""Times and sizes of sessions as their engine saw them, in the terms of vLLM's metrics."""

from __future__ import annotations

import msgspec

from tandem.engine.distribution import FEW, REQUEST_S, TOKENS, Distribution


def _times() -> Distribution:
    return Distribution.over(REQUEST_S)


def _tokens() -> Distribution:
    return Distribution.over(TOKENS)


def _few() -> Distribution:
    return Distribution.over(FEW)


class Served(msgspec.Struct):
    """Distributions over an engine's sessions, and over its steps.

    queue_s: seconds from the opening of a session to its first step; bounds are REQUEST_S, as of all times here.
    prefill_s: seconds from there to the first output token, of a session that was opened without output.
    inference_s: seconds from there to the last output token, with waits for its client, if it came to its output's end.
    prefilled: prompt tokens that were computed, not found in the KV cache; bounds are TOKENS.
    preemptions: times that a session was preempted, if it came to its output's end; bounds are FEW.
    step_tokens: positions of a step; bounds are TOKENS.
    """

    queue_s: Distribution = msgspec.field(default_factory=_times)
    prefill_s: Distribution = msgspec.field(default_factory=_times)
    inference_s: Distribution = msgspec.field(default_factory=_times)
    prefilled: Distribution = msgspec.field(default_factory=_tokens)
    preemptions: Distribution = msgspec.field(default_factory=_few)
    step_tokens: Distribution = msgspec.field(default_factory=_tokens)


class Stay:
    """One session's stay at an engine, which tells its Served.

    found: prompt tokens that the KV cache had when it was first admitted.
    preempted: times that it was.
    """

    __slots__ = ("_begun_s", "found", "preempted")

    def __init__(self) -> None:
        self.found = self.preempted = 0
        self._begun_s: float | None = None

    @property
    def begun(self) -> bool:
        """Whether it has taken part in a step."""
        return self._begun_s is not None

    def begin(self, opened_s: float, now_s: float, served: Served) -> None:
        """Note the beginning of its first step; later ones change nothing. opened_s: when it was opened."""
        if self._begun_s is None:
            self._begun_s = max(now_s, opened_s)
            served.queue_s.add(self._begun_s - opened_s, REQUEST_S)

    def prefilled(self, now_s: float, tokens: int, served: Served) -> None:
        """Note its first output token. tokens: of its prompt."""
        if self._begun_s is not None:
            served.prefill_s.add(now_s - self._begun_s, REQUEST_S)
            served.prefilled.add(max(0, tokens - self.found), TOKENS)

    def end(self, now_s: float, served: Served) -> None:
        """Note its output's last token."""
        if self._begun_s is not None:
            served.inference_s.add(now_s - self._begun_s, REQUEST_S)
            served.preemptions.add(self.preempted, FEW)
