"""Routing by difficulty: easy questions go to a device, difficult ones to the cloud; PICE's baseline "Routing".

The paper uses a learned router (Ding et al., "Hybrid LLM", 2024). What is known here when a request arrives is how
long its answer may be, and long answers take a small model longest.
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
    """Routes by difficulty if the client leaves mode and device open; otherwise as `explicit`.

    longest: tokens; questions whose answer may be longer are difficult.
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
