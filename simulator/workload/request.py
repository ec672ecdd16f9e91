"""One request of a workload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outline:
    """Outline of an answer: the sketch that a target would write, and small models' expansion of it.

    expected: the sketch's stated length of the answer, tokens; None without one.
    tokens: of the sketch.
    notes: where each begins and ends in it.
    sentences: tokens of each note's sentence.
    """

    expected: int | None
    tokens: int
    notes: tuple[tuple[int, int], ...]
    sentences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    arrival_s: seconds from the workload's start.
    prompt_tokens: prompt length.
    output_tokens: the answer's true length, which only the simulated engine may know.
    acceptance: a byte per output position, 1 if the drafter's token would be the target's own, given the output up to
        there; None if nothing is drafted. With greedy decoding it does not depend on the window, so the target's token
        at the same position replaces a rejected draft.
    confidence: probability that a split model's drafter gives each of these tokens; None to draw it consistently with
        the acceptance.
    device: index of its client's device; None leaves that to the topology.
    reader_rate: tokens/s of its reader; 0 without one.
    mode: requested mode; None for none.
    max_tokens: its client's limit of the answer; None for as much as the context leaves.
    outline: of its answer; None to draw one of the answer's length.
    fused: whether it names no device, so that the cloud's own drafter drafts for it, if any does.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    acceptance: bytes | None = None
    device: int | None = None
    reader_rate: float = 0.0
    mode: str | None = None
    max_tokens: int | None = None
    confidence: tuple[float, ...] | None = None
    outline: Outline | None = None
    fused: bool = False


_TO_BITS = bytes.maketrans(b"01", b"\x00\x01")


def unpack(text: str) -> bytes:
    """Return "0110" as a byte per position."""
    return text.encode("ascii").translate(_TO_BITS)
