"""A request as a workload holds it, and as a trace file writes it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Request:
    """arrival_s: seconds from the start; prompt_tokens, output_tokens: lengths.

    acceptance: a byte per output position, 1 where the drafter's token would be the target's own, given the
    output up to there; None where nothing is drafted. With greedy decoding it does not depend on the window,
    so a rejected draft is made up for by the target's token at the same position.
    drafter: index of the device it belongs to; None leaves that to the topology.
    rate: tokens/s that its reader takes in; 0: not said.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    acceptance: bytes | None = None
    drafter: int | None = None
    rate: float = 0.0


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """DSD's trace record: one line of a JSONL trace. acceptance_seq: a string of 0 and 1."""

    prompt_length: int
    output_length: int
    arrival_time_ms: float
    acceptance_seq: str | None = None
    drafter_id: int | None = None

    def __post_init__(self) -> None:
        for key in ("prompt_length", "output_length"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, not {getattr(self, key)}")
        if not 0 <= self.arrival_time_ms < float("inf"):
            raise ValueError(f"arrival_time_ms must be at least 0, not {self.arrival_time_ms}")
        if self.drafter_id is not None and self.drafter_id < 0:
            raise ValueError(f"drafter_id must be at least 0, not {self.drafter_id}")
        if self.acceptance_seq is None:
            return
        if self.acceptance_seq.strip("01"):
            raise ValueError("acceptance_seq may hold 0 and 1 only")
        if len(self.acceptance_seq) != self.output_length:
            raise ValueError(
                f"acceptance_seq has {len(self.acceptance_seq)} entries, output_length is {self.output_length}"
            )

    def request(self) -> Request:
        """The request that this line stands for."""
        return Request(
            arrival_s=self.arrival_time_ms / 1e3,
            prompt_tokens=self.prompt_length,
            output_tokens=self.output_length,
            acceptance=None if self.acceptance_seq is None else unpack(self.acceptance_seq),
            drafter=self.drafter_id,
        )

    @classmethod
    def of(cls, request: Request) -> Record:
        """The line that stands for this request."""
        return cls(
            prompt_length=request.prompt_tokens,
            output_length=request.output_tokens,
            arrival_time_ms=request.arrival_s * 1e3,
            acceptance_seq=None if request.acceptance is None else pack(request.acceptance),
            drafter_id=request.drafter,
        )


_TO_BITS = bytes.maketrans(b"01", b"\x00\x01")
_TO_TEXT = bytes.maketrans(b"\x00\x01", b"01")


def unpack(text: str) -> bytes:
    """ "0110" → a byte a position."""
    return text.encode("ascii").translate(_TO_BITS)


def pack(acceptance: bytes) -> str:
    """The inverse of `unpack`."""
    return acceptance.translate(_TO_TEXT).decode("ascii")
