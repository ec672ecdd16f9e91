"""Step timers: how long one step of an engine takes.

Three kinds: composed of operators (tables or roofline), measured on a live engine, and a device's plain rates. The
simulator's inner loop calls them once per step, so whatever depends on a count alone is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol

from tandem.cluster.devices.profile import DeviceProfile
from tandem.simulator.hardware.interpolate import Curve

Attention = Callable[[float, float], float]  # (sequences or chunk, context) → seconds, all layers


class StepTimer(Protocol):
    """Time of one engine step."""

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        """Return the seconds of a step over `tokens` positions in all.

        sequences: those that decode or verify a window.
        context: sum of their cached tokens, which attention reads once, however many positions the window has.
        prefills: (tokens, context before them) of every prefill chunk.
        """
        ...


class OperatorTimer:
    """Dense operators over tokens, the head over rows, attention over its shape, the host over sequences; each in
    seconds for the whole model. sources: source of each, by operator."""

    __slots__ = ("_decode", "_dense", "_head", "_host", "_prefill", "sources")

    def __init__(
        self,
        dense: Callable[[float], float],
        head: Callable[[float], float],
        host: Callable[[float], float],
        decode: Attention,
        prefill: Attention,
        sources: Mapping[str, str],
    ) -> None:
        self._dense, self._host = cache(dense), cache(host)
        self._head = Curve((rows, head(rows)) for rows in (1, 8, 32, 64, 128, 256, 512, 1024, 2048))
        self._decode, self._prefill = decode, prefill
        self.sources = sources

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        seconds = self._dense(tokens) if tokens else 0.0
        rows = tokens
        for chunk, before in prefills:
            seconds += self._prefill(chunk, before)
            rows += 1 - chunk
        if sequences:
            seconds += self._decode(sequences, context / sequences)
        return seconds + self._head.at(rows) + self._host(sequences + len(prefills))


@dataclass(frozen=True, slots=True)
class MeasuredTimer:
    """Linear model of a step, with coefficients measured on a live engine; all in seconds.

    base_s: of a step.
    token_s: of a position.
    sequence_s: of a sequence.
    context_s: of a cached token that is attended to.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    base_s: float
    token_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.base_s, self.token_s, self.sequence_s, self.context_s) < 0:
            raise ValueError("the coefficients of a measured timer must be at least 0")

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        return (
            self.base_s
            + self.token_s * tokens
            + self.sequence_s * (sequences + len(prefills))
            + self.context_s * (context + sum(before for _, before in prefills))
        )


@dataclass(frozen=True, slots=True)
class RateTimer:
    """A device of fixed rates, as in `cluster.devices.profile.DeviceProfile`.

    prefill_tokens_per_s: of a prompt.
    decode_tokens_per_s: of an answer, however many are decoded at once.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    prefill_tokens_per_s: float
    decode_tokens_per_s: float

    def __post_init__(self) -> None:
        if min(self.prefill_tokens_per_s, self.decode_tokens_per_s) <= 0:
            raise ValueError("a device's rates must be above 0")

    @classmethod
    def of(cls, profile: DeviceProfile) -> RateTimer:
        """Return the profile's rates; raises ValueError for a profile without any (it runs at its machine's speed)."""
        if profile.prefill_tokens_per_s is None or profile.decode_tokens_per_s is None:
            raise ValueError(f"profile {profile.name!r} has no rates to simulate")
        return cls(profile.prefill_tokens_per_s, profile.decode_tokens_per_s)

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        chunks = sum(chunk for chunk, _ in prefills)
        decoded = (tokens - chunks) / max(1, sequences)  # of each
        return chunks / self.prefill_tokens_per_s + decoded / self.decode_tokens_per_s
