"""Batching defaults from step times: how much prefill a step takes beside decoding."""

from __future__ import annotations

from typing import NamedTuple

from tandem.simulator.hardware.timer import StepTimer

SLOWER = 16.0
"""Longest step with a chunk, relative to one without. Prefill then loses at most a sixteenth of its speed to decoding,
so that longer chunks hardly shorten TTFT, and no token is delayed by more than sixteen steps. On GPUs that is 2,048 or
4,096 tokens, about vLLM's default."""
SEQUENCES, CONTEXT = 32, 1024  # of decoding beside the chunk
SMALLEST, LARGEST = 32, 8192  # tokens of a chunk
FAR = 4096  # tokens of context from which attention's growth is read
NEVER = 1_000_000_000


class Batching(NamedTuple):
    """Parameters of `policies.scheduling.batching.ChunkedPrefill`, in tokens.

    chunk: of prompts, in a step that decodes as well.
    context_doubles: context at which a position takes twice the time of a prompt's first.
    """

    chunk: int
    context_doubles: int


def derive_batching(timer: StepTimer) -> Batching:
    """Return the longest chunk (a power of two) that makes a step at most SLOWER times as long, and attention's
    growth."""
    plain_s = timer.step_s(SEQUENCES, SEQUENCES, SEQUENCES * CONTEXT)

    def chunk_s(chunk: int, before: int = 0) -> float:
        """Return the seconds that a chunk adds to that step."""
        prefills = [(chunk, before)]
        return timer.step_s(SEQUENCES + chunk, SEQUENCES, SEQUENCES * CONTEXT, prefills) - plain_s

    chunk = SMALLEST
    while chunk < LARGEST and chunk_s(2 * chunk) <= (SLOWER - 1) * plain_s:
        chunk *= 2
    grown_s = chunk_s(chunk, FAR) - chunk_s(chunk)
    if grown_s <= 0:
        return Batching(chunk, NEVER)
    return Batching(chunk, max(1, min(NEVER, round(FAR * chunk_s(chunk) / grown_s))))
