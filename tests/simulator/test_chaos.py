"""Deterministic faults: promises hold whatever happens, a seed replays to the byte, and a broken promise is seen."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from deployments.request.timeouts import Limits
from deployments.settings import LimitSettings
from simulator import chaos
from simulator.chaos import Outcome, play
from simulator.network import LinkedSession

SEEDS = [906, 1480, 2593, 4101, 5567, *range(1000, 1150)]  # the first ones have broken promises once
BLIND_SEEDS = range(2000, 2040)
KINDS = {"kill", "restart", "cut", "stall", "late", "router", "scheduler", "drain"}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [play(seed) for seed in SEEDS]


def test_promises_hold(outcomes: list[Outcome]) -> None:
    broken = {outcome.seed: outcome.broken for outcome in outcomes if outcome.broken}
    assert not broken


def test_every_kind_of_fault_happens(outcomes: list[Outcome]) -> None:
    happened = Counter(fault.kind for outcome in outcomes for fault in outcome.faults)
    assert set(happened) == KINDS


def test_few_requests_are_refused(outcomes: list[Outcome]) -> None:
    assert sum(o.refused for o in outcomes) < 0.1 * sum(len(o.answers) for o in outcomes)


def seen(seed: int) -> list[tuple[object, ...]]:
    """All that clients see of a run, to the last bit."""
    answers = play(seed).answers
    return [(a.number, a.finish, a.failure, tuple(a.ids or ()), tuple(a.times_s or ())) for a in answers]


@pytest.mark.parametrize("seed", [1003, 1017])
def test_a_seed_replays_to_the_byte(seed: int) -> None:
    first = seen(seed)
    assert first == seen(seed)
    assert first != seen(seed + 1)


def broken() -> str:
    return "\n".join(line for seed in BLIND_SEEDS for line in play(seed).broken)


def test_answers_that_nobody_goes_on_with_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LimitSettings, "limits", lambda settings: Limits(replans=0, assign_s=1e-9))
    assert "did not come whole" in broken()


def test_readers_who_are_kept_waiting_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that faults do cause, held against a promise that nobody made."""
    monkeypatch.setattr(chaos, "promised_s", lambda limits, wait_s: 2.0)
    assert "waited" in broken()


def test_sessions_that_nobody_ends_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(session: LinkedSession) -> None:
        pass

    monkeypatch.setattr(LinkedSession, "cancel", forget)
    assert "is left with" in broken()
