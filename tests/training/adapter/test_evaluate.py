"""The adapter in the repository: what it is, what its drafts are worth, and that they change no answer."""

from __future__ import annotations

import asyncio
import json
from itertools import groupby

import pytest
import torch
from safetensors.torch import load_file

from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.engine.torch.split import bundle
from tandem.policies.speculation.arithmetic import MAX_WINDOW
from tandem.training.adapter import texts
from tandem.training.adapter.evaluate import Figures, Questions, measure, opened
from tests.effort import tried

SEED, LONGEST = 29, 512


@pytest.fixture(scope="module")
def questions() -> Questions:
    return texts.family_questions(Tokenizer.load(family.path("target")), tried(4, 12), SEED)


@pytest.fixture(scope="module")
def figures(questions: Questions) -> dict[str, Figures]:
    return asyncio.run(measure(family.path("target"), 2, family.adapter(), questions, LONGEST, (0.0, 0.6)))


def test_the_file_is_small_and_of_the_target_that_there_is() -> None:
    assert family.adapter().stat().st_size <= 1_000_000
    assert {tensor.dtype for tensor in load_file(family.adapter()).values()} == {torch.bfloat16}
    report = json.loads(family.adapter().with_suffix(".json").read_text())
    split = bundle.describe(family.path("target"), 2)
    assert (report["checksum"], report["layers"]) == (split.checksum, split.first)


@pytest.mark.slow
def test_it_clears_the_bars(figures: dict[str, Figures]) -> None:
    """Acceptance 0.65 on long answers and 2.06 accepted tokens a round at η = 0.6, with much to spare."""
    assert figures["long answers"].acceptance > 0.85
    assert figures["facts"].acceptance > 0.80
    long, facts = (figures[group].rounds[0.6] for group in ("long answers", "facts"))
    assert long.accepted / long.rounds > 3.5
    assert facts.accepted / facts.rounds > 2.06
    assert long.tokens > tried(300, 1000)


@pytest.mark.slow
def test_eta_saves_drafts_that_are_lost_otherwise(figures: dict[str, Figures]) -> None:
    for found in figures.values():
        every, sure = found.rounds[0.0], found.rounds[0.6]
        assert sure.drafted < 0.8 * every.drafted
        assert sure.accepted / sure.drafted > every.accepted / every.drafted + 0.1
        assert every.rounds <= sure.rounds


@pytest.mark.slow
def test_rounds_are_what_acceptance_per_token_says(figures: dict[str, Figures], questions: Questions) -> None:
    """Without a threshold, runs of tokens that the adapter knows, cut at MAX_WINDOW and at the model's own tokens. The
    answers follow one another, so a few runs go over an end."""
    for found in figures.values():
        expected = 0
        for known, run in groupby(found.agreed):
            length = len(list(run))
            expected += length - length // (MAX_WINDOW + 1) if known else 0
        assert found.rounds[0.0].accepted == pytest.approx(expected, rel=0.05)
        assert sum(found.agreed) >= found.rounds[0.0].accepted


@pytest.mark.slow
async def test_greedy_answers_are_the_whole_models(questions: Questions) -> None:
    whole = load(family.path("target"), EngineConfig(), threads=1)
    async with opened(family.path("target"), 2, family.adapter(), LONGEST) as parts:

        async def same(prompt: list[int]) -> bool:
            session = await whole.open(prompt, Sampling(max_tokens=LONGEST - len(prompt)))
            expected = [token async for tokens in session.generate() for token in tokens.ids]
            await session.cancel()
            return (await parts.answer(prompt, 0.6))[0] == expected

        asked = [*questions["long answers"][:6], *questions["facts"][:12]]
        assert all(await asyncio.gather(*map(same, asked)))
    await whole.close()
