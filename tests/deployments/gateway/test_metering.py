"""Counted engines keep the engine contract, and count."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from tandem.deployments.gateway import metering
from tandem.deployments.gateway.metering import Counted
from tandem.engine.base import Engine, Sampling, Tokens, Usage
from tandem.engine.null.engine import NullEngine, NullSession
from tests.engine_contract import CHECKS

PROMPT = [20, 21, 22]


@pytest.fixture(autouse=True)
def told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(metering, "BOOK_S", 3600.0)


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


class _BilledSession(NullSession):
    async def generate(self) -> AsyncGenerator[Tokens, None]:
        async for tokens in super().generate():
            usage = None if tokens.finish is None else Usage(50, 60)
            yield Tokens(tokens.ids, tokens.finish, usage=usage)


async def test_what_a_service_bills_takes_the_place_of_our_count() -> None:
    booked: list[tuple[int, int]] = []
    inner = NullEngine()
    inner.session_class = _BilledSession  # type: ignore[misc]
    session = await Counted(inner, lambda *tokens: booked.append(tokens)).open(PROMPT, Sampling(max_tokens=4))
    for _ in range(2):
        async for _ in session.generate():
            pass
        await session.extend(1, [5])
    await session.cancel()
    assert booked == [(50 + 50 + 1, 60 + 60)]


async def test_handles_are_their_owners() -> None:
    """A device that has learnt another's handle asks for states of its own under it."""
    asked: list[str] = []

    class Noting(NullEngine):
        async def open(
            self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
        ) -> NullSession:
            asked.append(sampling.kept)
            return await super().open(prompt, sampling, log)

    for owner, handle in (("key-1/laptop", "a"), ("key-2/phone", "a"), ("key-2/phone", "")):
        engine = Counted(Noting(), lambda taken_in, given_out: None, owner=owner)
        await (await engine.open(PROMPT, Sampling(kept=handle))).cancel()
    assert asked == ["key-1/laptop/a", "key-2/phone/a", ""]
