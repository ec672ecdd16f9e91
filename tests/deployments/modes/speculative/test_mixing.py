"""Drafts of a device and of the target's own prompt lookup, mixed by expected gain, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import count

import msgspec
import pytest

from tandem.deployments.request.job import Job
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.null.engine import NullEngine
from tandem.policies.speculation.gain import GainWindow
from tandem.policies.speculation.lookup import agreement
from tandem.policies.speculation.window import StaticWindow, WindowPolicy
from tandem.simulator.engines.engine import Compute, Hardware, timed_engine
from tandem.simulator.engines.script import Script
from tests.deployments.faults import World, with_window
from tests.deployments.modes.test_executor import answer
from tests.virtual import now_s

pytestmark = pytest.mark.virtual_time


def new(tokens: int) -> list[int]:
    return [next(_new) for _ in range(tokens)]


_new = count(100)
PASSAGES = [new(40) for _ in range(4)]
PROMPT = tuple(token for passage in PASSAGES for token in passage)
SAID = {
    "new": new(400),
    "quoted": [*new(5), *PROMPT, *new(5), *PROMPT],
    "both": [token for passage in PASSAGES * 2 for part in (new(30), passage) for token in part],
}
"""Texts that the target says."""


class Says(Script):
    """A target that says one text, whatever the request is."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__()
        self._text = text

    def number(self, tokens: Sequence[int]) -> int:
        return 0

    def judge(self, number: int, position: int, drafts: Sequence[int]) -> tuple[int, int]:
        accepted = agreement(drafts, self._text[position:])
        return accepted, self._text[position + accepted]


class FewCores:
    """A step of 20 ms, and 5 ms for each position."""

    def step_s(
        self, tokens: int, sequences: int, context: int, prefills: Sequence[tuple[int, int]] = ()
    ) -> float:
        return 0.02 + 0.005 * tokens


class Phone(NullEngine):
    """A device that knows four of five tokens of the text; 5 ms a token."""

    def __init__(self, text: Sequence[int], target: CoreEngine) -> None:
        super().__init__(1 / 0.005)
        self.info = msgspec.structs.replace(target.info, model="phone")
        chance = random.Random(1)
        self._text = [token if chance.random() < 0.8 else 99 for token in text]

    def proposal(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        return self._text[len(output)]


async def seconds(text: Sequence[int], mode: str, lookup: int, window: Callable[[], WindowPolicy]) -> float:
    """Return the seconds of six answers, one after another. lookup: of the target."""
    compute = Compute(Hardware(asyncio.get_running_loop()), FewCores())
    config = EngineConfig(lookup=lookup)
    target = timed_engine("target", config, compute, Says([*text, 0]), context=4096)
    world = World([target], devices={"phone": Phone([*text, 0], target)}, speculative=with_window(window))
    began_s = now_s()
    for n in range(6):
        job = Job(n + 1, PROMPT, Sampling(max_tokens=len(text)), mode=mode, device="phone")
        ids, _ = await answer(world, job)
        assert ids == text
    return now_s() - began_s


@pytest.mark.parametrize("text", SAID)
async def test_mixing_is_not_slower_than_the_better_of_both(text: str) -> None:
    said = SAID[text]
    drafted_s = await seconds(said, "speculative", 0, GainWindow)
    looked_up_s = await seconds(said, "cloud", 16, GainWindow)
    mixed_s = await seconds(said, "speculative", 16, GainWindow)
    assert mixed_s < 1.03 * min(drafted_s, looked_up_s)
    if text == "both":
        assert mixed_s < 0.9 * min(drafted_s, looked_up_s)


@pytest.mark.parametrize("text", SAID)
async def test_lookup_helps_rounds_of_a_fixed_window(text: str) -> None:
    said = SAID[text]
    alone_s, mixed_s = [await seconds(said, "speculative", lookup, StaticWindow) for lookup in (0, 16)]
    assert mixed_s < (1.01 if text == "new" else 0.8) * alone_s
