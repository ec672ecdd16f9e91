"""Openings: tokens come as they are written, and a sentence without an end is not whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from tandem.deployments.modes.sketch.opening import LONGEST, Opening
from tandem.engine.base import EngineStopped, Sampling, Tokens
from tandem.engine.sketch.base import Question, SketchFormat

pytestmark = pytest.mark.virtual_time
EOS = 2


class Target:
    """Session that writes a token a second. ids: of the sentence; broken: whether it is lost behind them."""

    def __init__(self, ids: Sequence[int], broken: bool = False) -> None:
        self.ids, self.broken, self.closed = ids, broken, False
        self.sampling = Sampling()

    async def open(self, prompt: Sequence[int], sampling: Sampling) -> None:
        self.sampling = sampling

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        for token in self.ids:
            await asyncio.sleep(1.0)
            yield Tokens([token], "stop" if token == EOS else None)
        if self.broken:
            raise EngineStopped("gone")

    async def close(self) -> None:
        self.closed = True


def opening(target: Any) -> Opening:
    form = Mock(
        SketchFormat,
        sentence=lambda question, ids, number: [token for token in ids if token != EOS or number],
        sentence_form=Mock(return_value=None),
    )
    made = Opening(form, Question((1,)), target)
    made.begin((1, 2), Sampling(max_tokens=400, stop=("x",), stop_tokens=(7,)))
    return made


async def test_tokens_come_as_they_are_written() -> None:
    made = opening(target := Target([5, 6, 7, EOS]))
    assert (made.begun, made.fresh(), made.whole) == (False, [], False)
    await asyncio.sleep(1.5)
    assert (made.begun, made.fresh(), made.fresh()) == (True, [5], [])
    assert [ids async for ids in made.rest()] == [[6], [7]]
    assert (made.said, made.whole, target.closed) == ([5, 6, 7], True, True)
    assert (target.sampling.max_tokens, target.sampling.stop, target.sampling.stop_tokens) == (
        LONGEST,
        (),
        (),
    )


@pytest.mark.parametrize(
    "target", [Target([5, 6], broken=True), Target([5] * LONGEST)], ids=["lost", "endless"]
)
async def test_what_has_no_end_is_not_whole(target: Target) -> None:
    made = opening(target)
    assert [token async for ids in made.rest() for token in ids] == [id for id in target.ids]
    assert (made.whole, target.closed) == (False, True)


async def test_one_that_is_stopped_frees_its_place() -> None:
    made = opening(target := Target([5] * 9))
    await asyncio.sleep(2.5)
    await made.close()
    assert (target.closed, made.fresh(), made.whole) == (True, [5, 5], False)
