"""Counted engines keep the engine contract, and count."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tandem.deployments.gateway.metering import Counted
from tandem.engine.base import Engine, Sampling
from tandem.engine.null_engine import NullEngine
from tests.engine_contract import CHECKS

PROMPT = [20, 21, 22]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Engine, list[int]], Awaitable[None]]) -> None:
    await check(Counted(NullEngine(context=2**20), lambda taken_in, given_out: None), PROMPT)


async def test_all_that_a_session_took_in_and_gave_out() -> None:
    booked: list[tuple[int, int]] = []
    engine = Counted(NullEngine(), lambda *tokens: booked.append(tokens))
    session = await engine.open(PROMPT, Sampling(max_tokens=50, ignore_eos=True), [5, 6])
    draft = await session.draft(2, [7], 3)
    await session.extend(3, [8, 9])
    verdict = await session.verify([1, 2])
    assert not booked
    await session.cancel()
    await session.cancel()
    assert booked == [(3 + 2 + 1 + 2, len(draft.ids) + len(verdict.ids))]
