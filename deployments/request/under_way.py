"""Answers that are being given, as operators see them: who works for whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An answer that is being given.

    request: its job's id.
    account: who pays.
    mode: in which it is served now; "" before it is assigned.
    endpoints: names of the endpoints that work for it, by role.
    tokens: number of tokens so far.
    origin: origin of the last of them; "" without any.
    """

    request: int
    account: str
    mode: str
    endpoints: dict[str, str]
    tokens: int
    origin: str
