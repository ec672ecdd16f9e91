"""Drafts of another vocabulary through the executor: what a useless pair costs, and one that cannot read the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from tandem.deployments.modes.speculative.mode import Speculation
from tandem.deployments.modes.speculative.settings import SpeculativeOptions, SpeculativeSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.engine.base import Engine, Sampling
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Translated, translate
from tests.deployments.faults import World
from tests.deployments.modes.test_executor import answer, left_open
from tests.engine.translated.test_contract import ALPHABET, HERE, PROMPT, THERE, byte_level
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

    def __init__(self, device: Engine, there: Tokenizer, verifier: Engine | None = None) -> None:
        verifiers = [verifier or target()]
        super().__init__(verifiers, devices={"phone": device}, speculative=SpeculativeSettings())
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


class ByTemperature(NullEngine):
    """Takes sampled requests, too, and notes the temperatures. It says tokens of its own for each kind."""

    def __init__(self, tokens: Mapping[bool, int]) -> None:
        super().__init__(1 / 0.01, vocab_size=HERE.vocab_size)
        self.info = msgspec.structs.replace(self.info, vocabulary=HERE.vocabulary)
        self.asked: list[float] = []
        self._kinds = {greedy: NullEngine(1 / 0.01, vocab_size=HERE.vocab_size) for greedy in tokens}
        for greedy, token in tokens.items():
            self._kinds[greedy].next_token = lambda prompt, output, token=token: token  # type: ignore[misc]

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> NullSession:
        self.asked.append(sampling.temperature)
        kind = self._kinds[sampling.greedy]
        return await kind.open(prompt, msgspec.structs.replace(sampling, temperature=0.0), log)


@pytest.mark.parametrize("better", ["sampled", "greedy"])
@pytest.mark.parametrize("there", [THERE, HERE], ids=["two-vocabularies", "one"])
async def test_sampled_and_greedy_drafts_are_tried_and_the_better_ones_kept(
    there: Tokenizer, better: str
) -> None:
    right = 40 if there is HERE else translate([40], THERE, HERE)[0]
    target = ByTemperature({False: right, True: right})
    device = ByTemperature({False: 40 if better == "sampled" else 41, True: 40 if better == "greedy" else 41})
    device.info = msgspec.structs.replace(device.info, vocabulary=there.vocabulary)
    settings = SpeculativeSettings()
    alike = World([target], devices={"phone": device}, speculative=settings)
    world = alike if there is HERE else Translating(device, THERE, target)
    for n in range(60):
        sampling = Sampling(max_tokens=20, temperature=0.7, seed=n)
        options = (SpeculativeOptions(window=4),)
        wanted = Job(n + 1, tuple(PROMPT), sampling, mode="speculative", device="phone", options=options)
        ids, stats = await answer(world, wanted)
        assert (ids, stats.mode) == ([right] * 20, "speculative")
    assert {0.7, 0.0} == {*device.asked[:30]}
    assert device.asked[-15:].count(0.7 if better == "sampled" else 0.0) >= 14
    assert {*target.asked} == {0.7}


async def test_a_drafter_without_the_prompts_special_tokens_leaves_the_answer_to_the_cloud() -> None:
    world = Translating(NullEngine(), byte_level(["<eos>"], ALPHABET))
    prompt = (HERE.special_id("<bos>"), *PROMPT)
    wanted = Job(1, prompt, Sampling(max_tokens=TOKENS), mode="speculative", device="phone")
    ids, stats = await answer(world, wanted)
    assert (len(ids), stats.replans, stats.mode, stats.device) == (TOKENS, 1, "cloud", None)
    assert await left_open(world) == 0
