"""Paced streams: no faster than the reader, nothing lost, and the engine is neither held up nor kept busy."""

import asyncio
import json
import time
from contextlib import aclosing
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.app.api.reader.pacing import paced
from tandem.deployments.request.job import Delta, JobStats
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import EngineStopped, TokenLogprob
from tests.app.api.null_backend import NullBackend, events, times
from tests.virtual import now_s

SAYS = "Paced, token by token."
CHAT = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}], "stream": True}
NEVER = 0.001  # tokens/s: the second token is due long after the test


def wish(rate: float) -> dict:
    return CHAT | {"tandem": {"paced": True, "reader_rate": rate}}


class Source:
    """Yields deltas, given as (seconds of pause, tokens); tokens are numbered from 0.

    came_s: when each token came.
    closed_s: when the generator was closed.
    """

    def __init__(self, *deltas: tuple[float, int], error: Exception | None = None) -> None:
        self.deltas, self.error = deltas, error
        self.came_s: list[float] = []
        self.closed_s: float | None = None

    async def run(self):
        try:
            for n, (pause_s, tokens) in enumerate(self.deltas):
                await asyncio.sleep(pause_s)
                ids = [len(self.came_s) + i for i in range(tokens)]
                self.came_s += [now_s()] * tokens
                last = n == len(self.deltas) - 1 and not self.error
                scores = [TokenLogprob(-float(i)) for i in ids]
                stats = JobStats() if last else None
                yield Delta(
                    ids, [Origin.CLOUD] * tokens, "length" if last else None, logprobs=scores, stats=stats
                )
            if self.error:
                raise self.error
        finally:
            self.closed_s = now_s()


async def delivered(source: Source, rate: float) -> list[tuple[float, Delta]]:
    """(time, delta) pairs of a paced delivery."""
    return [(now_s(), delta) async for delta in paced(source.run(), rate)]


@pytest.mark.virtual_time
async def test_a_burst_is_delivered_token_by_token():
    source = Source((2.0, 4))
    given = await delivered(source, rate=10)
    assert [at_s for at_s, _ in given] == pytest.approx([2.0, 2.1, 2.2, 2.3])
    assert [delta.ids for _, delta in given] == [[0], [1], [2], [3]]
    assert [delta.finish for _, delta in given] == [None, None, None, "length"]
    assert len({id(delta.stats) for _, delta in given}) == 1, "all have the job's stats"
    assert source.closed_s == 2.0


@pytest.mark.virtual_time
async def test_tokens_that_are_due_together_come_together():
    given = await delivered(Source((0.0, 1), (1.0, 3), (1.0, 9)), rate=5)
    assert [at_s for at_s, _ in given] == pytest.approx([0.0, 1.0, 2.0, 2.2, 2.4])
    assert [len(delta.ids) for _, delta in given] == [1, 3, 7, 1, 1]


@pytest.mark.virtual_time
async def test_an_end_without_tokens_does_not_wait():
    given = await delivered(Source((0.0, 2), (0.15, 0)), rate=10)
    assert [(round(at_s, 6), delta.ids, delta.finish) for at_s, delta in given] == [
        (0.0, [0], None),
        (0.1, [1], None),
        (0.15, [], "length"),
    ]


@pytest.mark.virtual_time
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.05, 0.3, 2.0]), st.integers(0, 6)), min_size=1, max_size=12),
    st.sampled_from([0.5, 3.0, 7.0, 100.0]),
)
async def test_every_token_comes_as_soon_as_it_is_there_and_due(deltas, rate):
    source = Source(*deltas)
    given = await delivered(source, rate)
    tokens = [(at_s, *token) for at_s, d in given for token in zip(d.ids, d.logprobs or [], strict=True)]
    assert [(i, scores.logprob) for _, i, scores in tokens] == [
        (i, -float(i)) for i in range(len(source.came_s))
    ]
    due_s = [max(at_s, source.came_s[0] + n / rate) for n, at_s in enumerate(source.came_s)]
    assert [at_s for at_s, _, _ in tokens] == pytest.approx(due_s, abs=1e-6)
    assert [d.finish for _, d in given] == [None] * (len(given) - 1) + ["length"]
    assert source.closed_s == pytest.approx(sum(pause_s for pause_s, _ in deltas))


@pytest.mark.virtual_time
async def test_an_error_comes_after_the_tokens_before_it():
    source, came_s = Source((0.0, 3), error=EngineStopped("gone")), []

    async def listen():
        async for _ in paced(source.run(), 10):
            came_s.append(now_s())

    with pytest.raises(EngineStopped, match="gone"):
        await listen()
    assert came_s == pytest.approx([0.0, 0.1, 0.2])
    assert source.closed_s == 0.0


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [None, EngineStopped("gone")])
@pytest.mark.parametrize("pause_s", [0.0, 1.0])
async def test_closing_closes_the_source_at_once(pause_s, error):
    """Also while the source waits, or after it failed with tokens still to deliver."""
    source = Source((0.0, 3), (pause_s, 3), error=error)
    async with aclosing(paced(source.run(), NEVER)) as deltas:
        await anext(deltas)
        waiting = asyncio.create_task(anext(deltas))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
    assert source.closed_s == 0.0


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS, burst=3)


async def test_a_paced_stream_is_not_faster_than_its_reader(http):
    rate = 200.0
    began_s, arrived, said = time.monotonic(), [], []
    async with http.stream("POST", "/v1/chat/completions", json=wish(rate)) as reply:
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                arrived.append(time.monotonic() - began_s)
                said.append(json.loads(line.removeprefix("data: ")))
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in said]
    assert "".join(texts) == SAYS
    for at_s, characters in zip(arrived, accumulate(map(len, texts)), strict=True):
        assert at_s >= (characters - 1) / rate  # a token is a character
    assert arrived[-1] >= len(SAYS) / rate  # the end is a token, too
    assert [chunk["choices"][0]["finish_reason"] for chunk in said] == [None] * (len(said) - 1) + ["stop"]
    stats = said[-1]["tandem"]["stats"]
    assert (stats["tokens"]["output"], stats["reader"]["rate"]) == (len(SAYS) + 1, rate)


async def test_a_paced_stream_keeps_the_log_probabilities_of_the_prompt(http):
    asked = {"model": "null", "prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 2, "stream": True}

    async def scores(tandem):
        reply = await http.post("/v1/completions", json=asked | {"tandem": tandem})
        return [s for e in events(reply.text) for s in e["choices"][0]["logprobs"]["token_logprobs"]]

    assert await scores({"paced": True, "reader_rate": 1000}) == await scores({})
    assert len(await scores({})) == len("ab") + 2


async def test_a_paced_stream_of_several_choices(openai):
    texts = ["", ""]
    async for chunk in await openai.chat.completions.create(
        **CHAT, n=2, stop="by", extra_body={"tandem": {"paced": True, "reader_rate": 1000}}
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content
    assert texts == ["Paced, token "] * 2


async def test_the_engine_does_not_wait_for_the_reader(http, backend):
    """The job ends while the client has only its first token."""
    async with http.stream("POST", "/v1/chat/completions", json=wish(NEVER)) as reply:
        first = await anext(reply.aiter_lines())
        await times(1, backend.closed)
        assert (await backend.engine.stats()).tokens_generated == len(SAYS) + 1
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"]["content"] == "P"
