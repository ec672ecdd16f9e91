"""A request as a workload holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outline:
    """The sketch that a target would write of an answer, and what small models would write from it.

    expected: tokens that it tells of the answer; None: it does not.
    tokens: of the sketch.
    notes: where each begins and ends in it.
    sentences: tokens of each note's.
    """

    expected: int | None
    tokens: int
    notes: tuple[tuple[int, int], ...]
    sentences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    arrival_s: seconds from the workload's start.
    prompt_tokens: its length.
    output_tokens: the answer's true length, which only the simulated engine may know.
    acceptance: a byte per output position, 1 where the drafter's token would be the target's own, given the output up
        to there; None where nothing is drafted. With greedy decoding it does not depend on the window, so a rejected
        draft is made up for by the target's token at the same position.
    confidence: with which probability the drafter of a split model says each of these tokens; None: drawn, so that it
        agrees with the acceptance.
    device: index of the device that it comes from; None leaves that to the topology.
    reader_rate: tokens/s that its reader takes in; 0 where nobody said.
    mode: that it asks for; None for none.
    max_tokens: its client's limit of the answer; None for as much as the context leaves.
    outline: of its answer; None: drawn, of the answer's length.
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


_TO_BITS = bytes.maketrans(b"01", b"\x00\x01")


def unpack(text: str) -> bytes:
    """ "0110" → a byte a position."""
    return text.encode("ascii").translate(_TO_BITS)
