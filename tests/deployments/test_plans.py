"""The plans: each mode's tokens, origins and counts, and that speculation loses nothing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.tokenlog import Origin, TokenLog
from deployments.job import Job, JobStats
from deployments.plans import Cloud, OnDevice, Plan, Speculative
from deployments.plans.speculative import drafting
from engine.base import Draft, Sampling
from engine.null_engine import NullEngine
from policies.pair import Pair
from policies.window import StaticWindow, WindowState
from tests.deployments.faults import PROMPT, Script, reference


async def answer(plan: Plan, job: Job, log: TokenLog | None = None) -> tuple[TokenLog, str, JobStats]:
    """Run a plan to its end, entering every piece into the log as the executor does."""
    log, stats = log or TokenLog(), JobStats()
    async for piece in plan.run(job, log, stats):
        log.append(piece.position, piece.ids, piece.origins, 0.0)
        if piece.finish:
            return log, piece.finish, stats
    raise AssertionError("the plan ended without a finish")


def job(max_tokens: int = 20, **fields: object) -> Job:
    return Job(7, PROMPT, Sampling(max_tokens=max_tokens), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("plan", "origin"), [(Cloud, Origin.CLOUD), (OnDevice, Origin.DEVICE)])
async def test_one_engine_decodes_alone(plan: type[Cloud | OnDevice], origin: Origin) -> None:
    log, finish, _ = await answer(plan(NullEngine()), job())
    assert (log.ids, finish) == (reference(PROMPT, 20), "length")
    assert set(log.origins) == {origin}


async def test_a_plan_continues_a_log() -> None:
    expected = reference(PROMPT, 20)
    for plan in (Cloud(NullEngine()), Speculative(NullEngine(), NullEngine(), Pair(StaticWindow(3)))):
        begun = TokenLog(expected[:9], [Origin.DEVICE] * 9, [0.0] * 9)
        log, _, _ = await answer(plan, job(), begun)
        assert log.ids == expected


async def test_a_perfect_drafter_has_all_drafts_accepted() -> None:
    log, finish, stats = await answer(Speculative(NullEngine(), NullEngine(), Pair(StaticWindow(4))), job(21))
    assert (log.ids, finish) == (reference(PROMPT, 21), "length")
    assert (stats.rounds, stats.drafted, stats.accepted) == (4, 16, 16)
    assert log.by_origin() == {"cloud": 1, "draft": 16, "bonus": 4}


async def test_a_rejected_draft_is_corrected() -> None:
    plan = Speculative(NullEngine(), NullEngine(mistake_every=3), Pair(StaticWindow(4)))
    log, _, stats = await answer(plan, job(12))
    assert log.ids == reference(PROMPT, 12)
    wrong = [position for position, origin in enumerate(log.origins) if origin is Origin.CORRECTED]
    assert wrong == [2, 5, 8]  # 11 is the last token, which is never drafted
    assert stats.accepted == log.by_origin()["draft"]


class Scripted(NullEngine):
    """Drafts wrongly exactly where the script says so, whatever the positions."""

    def __init__(self, script: list[bool]) -> None:
        super().__init__()
        self.script, self.at = script, 0

    async def draft(self, session: int, position: int, tokens: list[int], window: int) -> Draft:
        draft = await super().draft(session, position, tokens, window)
        for n, token in enumerate(draft.ids):
            self.at += 1
            if self.script[self.at % len(self.script)]:
                draft.ids[n] = 16 + (token - 15) % 2032
        return draft


@settings(deadline=None, max_examples=60)
@given(
    gamma=st.integers(1, 12),
    script=st.lists(st.booleans(), min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    prompt=st.lists(st.integers(0, 2047), min_size=1, max_size=8),
)
def test_speculation_is_lossless(gamma: int, script: list[bool], max_tokens: int, prompt: list[int]) -> None:
    plan = Speculative(NullEngine(), Scripted(script), Pair(StaticWindow(gamma)))
    wanted = Job(1, tuple(prompt), Sampling(max_tokens=max_tokens))
    log, finish, stats = asyncio.run(answer(plan, wanted))
    assert (log.ids, finish) == (reference(prompt, max_tokens), "length")
    assert stats.drafted <= gamma * stats.rounds
    assert stats.accepted == log.by_origin().get("draft", 0)


async def test_the_client_may_fix_the_window() -> None:
    _, _, stats = await answer(
        Speculative(NullEngine(), NullEngine(), Pair(StaticWindow(2))), job(30, window=7)
    )
    assert stats.drafted == 7 * 3 + 4  # 1 + 3 × 8, then 5 left of which the target adds the last


async def test_a_stop_token_ends_the_answer_inside_a_draft() -> None:
    expected = reference(PROMPT, 20)
    stopping = Job(1, PROMPT, Sampling(max_tokens=20, stop_tokens=(expected[6],)))
    log, finish, _ = await answer(Speculative(NullEngine(), NullEngine(), Pair(StaticWindow(5))), stopping)
    assert (log.ids, finish) == (expected[:7], "stop")


async def test_the_window_policy_sees_what_the_pair_has_done() -> None:
    seen: list[WindowState] = []

    class Watching(StaticWindow):
        def choose(self, state: WindowState) -> int:
            seen.append(state)
            return super().choose(state)

    plan = Speculative(NullEngine(), NullEngine(mistake_every=2), Pair(Watching(2), rtt_s=0.01, queue=0.5))
    await answer(plan, job(12))
    assert (seen[0].acceptance, seen[0].tpot_s, seen[0].previous) == (0.0, 0.0, 0)
    assert 0 < seen[-1].acceptance < 1
    assert seen[-1].tpot_s > 0
    assert (seen[-1].rtt_s, seen[-1].queue, seen[-1].previous) == (0.01, 0.5, 2)


@settings(deadline=None, max_examples=60)
@given(
    windows=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    script=st.lists(st.booleans(), min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    helped=st.booleans(),
)
def test_switching_in_mid_answer_is_lossless(
    windows: list[int], script: list[bool], max_tokens: int, helped: bool
) -> None:
    plan = Speculative(
        NullEngine(),
        Scripted(script),
        Pair(Script(windows)),
        distributed=True,
        fused=Scripted([*script, True]) if helped else None,
    )
    log, finish, stats = asyncio.run(answer(plan, job(max_tokens)))
    assert (log.ids, finish) == (reference(PROMPT, max_tokens), "length")
    assert stats.fused_rounds <= stats.rounds
    assert (stats.fused_rounds == stats.rounds) or any(w > 1 for w in windows)
    assert stats.accepted == log.by_origin().get("draft", 0)


async def test_fused_rounds_leave_the_device_alone_and_it_takes_up_again() -> None:
    asked: list[tuple[str, int, int]] = []

    class Noting(NullEngine):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def draft(self, session: int, position: int, tokens: list[int], window: int) -> Draft:
            asked.append((self.name, position, len(tokens)))
            return await super().draft(session, position, tokens, window)

    pair = Pair(Script([3, 1, 1, 3]))
    plan = Speculative(NullEngine(), Noting("device"), pair, distributed=True, fused=Noting("cloud"))
    log, _, stats = await answer(plan, job(1 + 4 + 5 + 5 + 4))
    assert log.ids == reference(PROMPT, 19)
    # (who, from which output position, how many confirmed tokens it is told)
    assert asked == [("device", 0, 1), ("cloud", 5, 0), ("cloud", 5, 5), ("device", 1, 14)]
    assert (stats.rounds, stats.fused_rounds, stats.switches) == (4, 2, 2)
    assert (stats.drafted, stats.fused_drafted) == (14, 8)
    assert pair.state().fused_s > 0


@pytest.mark.parametrize(
    ("helper", "max_tokens", "noted"),
    [(True, 1 + 5 + 5 + 2, [(4, False), (4, False), (1, True)]), (False, 1 + 2, [(0, False), (0, False)])],
)
async def test_the_pair_is_told_which_fused_round_the_outputs_end_has_cut(
    helper: bool, max_tokens: int, noted: list[tuple[int, bool]]
) -> None:
    told: list[tuple[int, bool]] = []

    class Noting(Pair):
        def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
            told.append((drafted, cut))

    cloud = NullEngine() if helper else None
    plan = Speculative(NullEngine(), NullEngine(), Noting(Script([1])), distributed=True, fused=cloud)
    await answer(plan, job(max_tokens))
    assert told == noted


async def test_a_window_the_client_fixed_is_never_fused() -> None:
    pair = Pair(Script([1]))
    plan = Speculative(NullEngine(), NullEngine(), pair, distributed=True, fused=NullEngine())
    _, _, stats = await answer(plan, job(20, window=1))
    assert stats.fused_rounds == 0
    assert stats.drafted == 9  # 1 + 9 × 2, and the last token is the target's alone


def test_the_drafter_draws_with_coins_of_its_own() -> None:
    target = Sampling(temperature=0.7, seed=12, stop=("\n",), logprobs=3)
    drafter = drafting(target)
    drafter.check()
    assert drafter.seed != target.seed
    assert (drafter.temperature, drafter.stop, drafter.logprobs) == (0.7, (), -1)
