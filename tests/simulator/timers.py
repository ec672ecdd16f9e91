"""Step timers of invented hardware, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Linear:
    """Step timer, linear in positions and tokens of context; keeps its arguments."""

    step: float = 0.02
    token: float = 0.001
    context: float = 0.0
    asked: list[tuple[int, int, int, tuple[tuple[int, int], ...]]] = field(default_factory=list)

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        self.asked.append((tokens, sequences, context, tuple(prefills)))
        return self.step + self.token * tokens + self.context * context
