"""Routing by difficulty: an easy question goes to a device, a difficult one to the cloud; PICE's baseline "Routing".

The paper takes a learned router (Ding et al., "Hybrid LLM", 2024). What is known here when a request arrives is how
long its answer may be, and long answers are what a small model takes longest for.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.policies.routing.collaboration import (
    Collaboration,
    CollaborationState,
    ExplicitElseCloud,
    collaboration,
)


@collaboration.register("difficulty")
class ByDifficulty(ExplicitElseCloud):
    """Where the client leaves mode and device open; otherwise as `explicit`.

    longest: tokens; a question whose answer may have more is difficult.
    """

    def __init__(self, longest: int = 256) -> None:
        if longest < 0:
            raise ValueError(f"longest must not be below 0 tokens, not {longest}")
        self._longest = longest

    def choose(self, state: CollaborationState) -> Collaboration:
        is_open = state.mode is None and state.device is None and "device" in state.modes
        if is_open and state.max_tokens <= self._longest and state.best_device(None) is not None:
            state = replace(state, mode="device")
        return super().choose(state)
