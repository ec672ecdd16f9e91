"""Questions of the benchmark of sketches' latency, and what it reads of an answer."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tandem.benchmarks.pice.bound import LEAST, ask, questions


def test_questions_are_different_ones_and_the_same_each_time() -> None:
    asked = questions(LEAST)
    assert len(set(asked)) == LEAST
    assert questions(LEAST) == asked


@pytest.mark.parametrize(
    ("figures", "sketched"),
    [({}, False), ({"sketches": 1, "finished": 0}, True), ({"sketches": 1, "finished": 1}, False)],
)
async def test_an_answer_that_the_target_finished_is_not_sketched(
    figures: dict[str, Any], sketched: bool
) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        modes = {"sketch": figures} if figures else {"cloud": {}}
        return httpx.Response(200, json={"tandem": {"stats": {"modes": modes}}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(reply), base_url="http://there") as http:
        assert (await ask(http, "Why?", "sketch")).sketched == sketched


async def test_a_refusal_is_no_answer() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    async with httpx.AsyncClient(transport=transport, base_url="http://there") as http:
        with pytest.raises(httpx.HTTPError):
            await ask(http, "Why?", "sketch")
