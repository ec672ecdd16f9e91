"""Losslessness, through two engines: what a target outputs is its own, whatever another model drafts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tandem.engine.base import Engine, Sampling
from tests.effort import slow_after
from tests.engine.torch.engines import Engines, collect, tokenizer
from tests.engine.torch.tiny_weights import VOCAB

PROMPTS = [[20, 21, 22], [9], [5, 6, 7, 8, 9, 10, 11, 12, 13], [30] * 8]


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    """The target, a drafter that resembles it, and one that does not; all with too little
    cache for the sessions, so that each engine's wait for blocks that the other keeps waiting."""
    made = Engines(tmp_path)
    made.start(seed=1, kv_blocks=24, text=tokenizer())
    made.start(seed=1, noise=0.08, kv_blocks=24)
    made.start(seed=9, kv_blocks=24)
    yield made
    await made.close()


class Rounds:
    """Draft and verify until the output ends, counting what became of the drafts."""

    def __init__(self) -> None:
        self.drafted = self.accepted = self.rounds = 0

    async def run(
        self,
        target: Engine,
        drafter: Engine,
        prompt: list[int],
        sampling: Sampling,
        gammas: Iterator[int],
        with_probs: bool = True,
    ) -> tuple[list[int], str | None]:
        verifying = await target.open(prompt, sampling)
        drafting = Sampling(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty,
            ignore_eos=sampling.ignore_eos,
        )
        proposing = await drafter.open(prompt, drafting)
        output: list[int] = []
        news: list[int] = []
        finish = None
        while finish is None:
            gamma = next(gammas)
            draft = await proposing.draft(len(output) - len(news), news, gamma)
            assert len(draft.ids) <= gamma
            assert (draft.probs is None) == (sampling.greedy or not draft.ids)
            verdict = await verifying.verify(draft.ids, draft.probs if with_probs else None)
            assert verdict.ids[: verdict.accepted] == draft.ids[: verdict.accepted]
            assert len(verdict.ids) <= verdict.accepted + 1
            news, finish = verdict.ids, verdict.finish
            output += news
            self.rounds += 1
            self.drafted += len(draft.ids)
            self.accepted += verdict.accepted
        await verifying.cancel()
        await proposing.cancel()
        return output, finish


@pytest.mark.parametrize("drafter", [1, 2], ids=["like the target", "unlike it"])
@pytest.mark.parametrize("gamma", slow_after(1, [3, 1, 2, 5, 8]))
async def test_greedy_is_token_for_token_the_targets(engines: Engines, gamma: int, drafter: int) -> None:
    """Use penalties, stop tokens and stop strings, or none; also a window that varies."""
    target, other = engines.made[0], engines.made[drafter]
    samplings = [
        Sampling(max_tokens=30),
        Sampling(max_tokens=25, ignore_eos=True, repetition_penalty=1.2, frequency_penalty=0.2),
        Sampling(max_tokens=30, ignore_eos=True, presence_penalty=0.8, stop_tokens=(7, 19)),
        Sampling(max_tokens=30, ignore_eos=True, stop=("1", "$%")),
        Sampling(max_tokens=30, min_tokens=12, stop_tokens=(7, 19), logit_bias=((9, 2.0), (11, -100.0))),
    ]
    rounds = Rounds()
    requests = [(prompt, sampling) for prompt in PROMPTS for sampling in samplings]
    outputs = await asyncio.gather(
        *(
            rounds.run(target, other, *request, cycle([gamma, 1 + i % 8]))
            for i, request in enumerate(requests)
        )
    )
    for i, (prompt, sampling) in enumerate(requests):
        session = await target.open(prompt, sampling)
        assert outputs[i] == await collect(session)
        await session.cancel()
        if not sampling.stop:
            assert outputs[i] == engines.greedy(prompt, sampling)
    assert {finish for _, finish in outputs} == {"stop", "length"}
    assert rounds.accepted < rounds.drafted, "nothing was ever rejected"
    if drafter == 1:
        assert rounds.accepted > rounds.drafted / 5, "hardly anything was accepted"
    assert (await target.stats()).preempted > 0


async def test_every_length_of_output_against_every_window(engines: Engines) -> None:
    """The end falls on every place of a round: inside the drafts, on the target's own token, after one."""
    target, other = engines.made[:2]
    whole, _ = engines.greedy(PROMPTS[0], Sampling(max_tokens=12, ignore_eos=True))
    rounds = Rounds()
    for max_tokens in range(1, 13):
        for gamma in range(1, 9):
            sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
            result = await rounds.run(target, other, PROMPTS[0], sampling, cycle([gamma]))
            assert result == (whole[:max_tokens], "length")
    for at, token in enumerate(whole):  # and so with a stop token at every place
        if token in whole[:at]:
            continue
        for gamma in (1, 3, 8):
            sampling = Sampling(max_tokens=12, ignore_eos=True, stop_tokens=(token,))
            result = await rounds.run(target, other, PROMPTS[0], sampling, cycle([gamma]))
            assert result == (whole[: at + 1], "length" if at == 11 and token != whole[at] else "stop")


@pytest.mark.parametrize("with_probs", slow_after(1, [True, False]), ids=["distributions", "point masses"])
async def test_sampled_rounds_repeat_themselves(engines: Engines, with_probs: bool) -> None:
    """Equal seeds and windows, equal output, at every length of output: alone, and beside 20 others."""
    target, other = engines.made[:2]

    def request(i: int) -> tuple[list[int], Sampling, Iterator[int]]:
        sampling = Sampling(
            max_tokens=1 + i, temperature=0.6 + i % 3 / 2, seed=i, top_k=10 * (i % 2), ignore_eos=i % 4 > 0
        )
        return PROMPTS[i % 4], sampling, cycle([1 + i % 7, 4])

    rounds = Rounds()
    alone = [await rounds.run(target, other, *request(i), with_probs) for i in range(20)]
    together = [rounds.run(target, other, *request(i), with_probs) for i in range(20)]
    assert await asyncio.gather(*together) == alone
    for i, (ids, finish) in enumerate(alone):
        assert len(ids) == 1 + i or finish == "stop"
        assert all(0 <= token < VOCAB for token in ids)
    assert 0 < rounds.accepted < rounds.drafted


async def test_a_drafter_equal_to_the_target_is_always_right(engines: Engines) -> None:
    """p = q: every draft stands, greedy or not, but for what rounding makes of a coin on the edge."""
    target = engines.made[0]
    twin = engines.start(seed=1)
    for temperature in (0.0, 1.0):
        rounds = Rounds()
        for seed in range(4):
            sampling = Sampling(max_tokens=30, temperature=temperature, seed=seed, ignore_eos=True)
            await rounds.run(target, twin, PROMPTS[0], sampling, cycle([4]))
        # the draft that would fill the last place gives way to the target's own token
        assert rounds.accepted >= rounds.drafted - 4
        assert rounds.rounds == 4 * 6
