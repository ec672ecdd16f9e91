"""Drafts of another vocabulary through the executor: what a useless pair costs, and one that cannot read the prompt."""

from __future__ import annotations

import msgspec
import pytest

from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.modes.speculative.settings import SpeculativeSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.engine.base import Engine, Sampling
from tandem.engine.null_engine import NullEngine
from tandem.engine.tokenizer import Tokenizer
from tandem.engine.translate import Translated
from tests.deployments.faults import World
from tests.deployments.modes.test_executor import answer, left_open
from tests.engine.test_translated import ALPHABET, HERE, PROMPT, THERE, byte_level
from tests.virtual import now_s

pytestmark = pytest.mark.virtual_time

TOKENS, ANSWERS = 100, 30


def target() -> NullEngine:
    """Return a target that takes 30 ms a step."""
    engine = NullEngine(1 / 0.03, vocab_size=HERE.vocab_size)
    engine.info = msgspec.structs.replace(engine.info, vocabulary=HERE.vocabulary)
    return engine


class Translating(World):
    """Devices speak a vocabulary of their own, as live ones do: what is dialled translates."""

    def __init__(self, device: Engine, there: Tokenizer) -> None:
        super().__init__([target()], devices={"phone": device}, speculative=SpeculativeSettings())
        self._there = there

    async def _dial(self, endpoint: EndpointInfo) -> Engine:
        engine = await super()._dial(endpoint)
        return Translated(engine, HERE, self._there) if endpoint.device else engine


async def served(device: Engine, mode: str) -> tuple[float, int]:
    """Return the seconds of ANSWERS answers, one after another, and the tokens drafted for them."""
    world = Translating(device, THERE)
    began_s, drafted = now_s(), 0
    for n in range(ANSWERS):
        wanted = Job(n + 1, tuple(PROMPT), Sampling(max_tokens=TOKENS), mode=mode, device="phone")
        ids, stats = await answer(world, wanted)
        assert (len(ids), stats.replans, stats.mode) == (TOKENS, 0, mode)
        drafted += Speculation.of(stats).drafted if mode == "speculative" else 0
    assert await left_open(world) == 0
    return now_s() - began_s, drafted


@pytest.mark.parametrize("token_s", [0.001, 0.02, 0.2], ids=["fast", "slow", "very-slow"])
async def test_a_useless_pair_is_hardly_slower_than_the_cloud_alone(token_s: float) -> None:
    wrong = NullEngine(1 / token_s, vocab_size=THERE.vocab_size)
    wrong.next_token = lambda prompt, output: 3 + len(output) % 7  # says what the target never does
    alone_s, _ = await served(wrong, "cloud")
    drafting_s, drafted = await served(wrong, "speculative")
    assert drafted > 0, "it was never tried"
    assert drafting_s < 1.03 * alone_s


async def test_a_drafter_without_the_prompts_special_tokens_leaves_the_answer_to_the_cloud() -> None:
    world = Translating(NullEngine(), byte_level(["<eos>"], ALPHABET))
    prompt = (HERE.special_id("<bos>"), *PROMPT)
    wanted = Job(1, prompt, Sampling(max_tokens=TOKENS), mode="speculative", device="phone")
    ids, stats = await answer(world, wanted)
    assert (len(ids), stats.replans, stats.mode, stats.device) == (TOKENS, 1, "cloud", None)
    assert await left_open(world) == 0
