"""Figures of an answer's reader: the rate they are for, and how they follow from the tokens' times."""

import asyncio

import pytest

from tandem.app.api.reader.metrics import Arrivals, Reading
from tandem.app.api.stats.stats import stats
from tandem.deployments.request.job import Delta, JobStats
from tandem.deployments.request.tokenlog import Origin
from tests.app.api.null_backend import NullBackend

SAYS = "Read slowly."
TOKENS = len(SAYS) + 1  # and eos
CHAT = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}]}
TEXT = {"model": "null", "prompt": "x"}
NEVER = 0.001  # tokens/s: the second token is needed long after the test


@pytest.fixture
async def backend() -> NullBackend:
    return NullBackend(says=SAYS)


@pytest.mark.parametrize(
    ("path", "body", "rate"),
    [
        ("chat/completions", CHAT, 0.0),  # nobody reads before it is whole
        ("chat/completions", CHAT | {"stream": True}, 5.0),
        ("chat/completions", CHAT | {"tandem": {"reader_rate": 8}}, 8.0),
        ("completions", TEXT, 0.0),
        ("completions", TEXT | {"tandem": {"reader_rate": 8}}, 8.0),
    ],
)
async def test_the_engines_are_told_the_readers_rate(http, backend, path, body, rate):
    await http.post(f"/v1/{path}", json=body)
    (job,) = backend.jobs
    assert job.sampling.reader_rate == rate


async def test_the_default_rate_is_the_servers(http, backend):
    for rate in (2.5, 0.0):
        backend.default_reader_rate = rate
        await http.post("/v1/chat/completions", json=CHAT | {"stream": True})
        assert backend.jobs.pop().sampling.reader_rate == rate


@pytest.mark.parametrize("rate", [None, 2.5])
async def test_figures_are_told_where_there_is_a_reader(http, rate):
    answer = (await http.post("/v1/chat/completions", json=CHAT | {"tandem": {"reader_rate": rate}})).json()
    told = answer["tandem"]["stats"]["reader"]
    assert told is None if rate is None else told["rate"] == rate


def test_a_reading_rests_on_the_times_of_the_tokens():
    arrivals = Arrivals(10.0)
    for now_s, tokens in ((7.0, 1), (7.1, 1), (8.2, 3), (8.3, 1)):  # the third should have come at 7.2
        arrivals.note(tokens, now_s)
    reading = arrivals.reading(6)
    assert (reading.rate, reading.tokens, reading.buffer_max) == (10.0, 6, 2)
    assert reading.stall_s == pytest.approx(1.0)
    assert 0 < reading.effective_tokens < 6


def test_tokens_after_the_end_are_not_read():
    arrivals, other = Arrivals(10.0), Arrivals(10.0)
    for a in (arrivals, other):
        a.note(2, 0.0)
    arrivals.note(5, 9.0)
    assert (
        arrivals.reading(2) == other.reading(2) == Reading(10.0, 2, 0.0, other.reading(2).effective_tokens, 1)
    )


def test_a_reading_without_a_reader_or_without_tokens_is_empty():
    unread = Arrivals()
    unread.note(3, 1.0)
    assert unread.reading(3) == Reading()
    assert Arrivals(5.0).reading(0) == Reading(5.0)


@pytest.mark.virtual_time
async def test_tokens_are_noted_as_they_come():
    arrivals = Arrivals(1.0)

    async def run():
        for _ in range(3):
            yield Delta([1, 2], [Origin.CLOUD] * 2)
            await asyncio.sleep(4.0)

    assert [delta.ids async for delta in arrivals.noted(run())] == [[1, 2]] * 3
    assert arrivals.reading(6).stall_s == pytest.approx(2 * (4.0 - 2.0))


def test_readings_of_several_choices_are_joined():
    both = stats([JobStats(), JobStats()], [Reading(5.0, 9, 1.5, 8.0, 3), Reading(5.0, 9, 0.25, 4.5, 7)])
    assert both.reader == Reading(5.0, 18, 1.75, 12.5, 7)
    assert stats([JobStats()], [Reading()]).reader is None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_reader_in_an_answers_stats(openai, stream):
    asked = CHAT | {"stream": stream, "extra_body": {"tandem": {"reader_rate": NEVER}}}
    answer = await openai.chat.completions.create(**asked)
    if stream:
        answer = [chunk async for chunk in answer][-1]
    told = answer.tandem["stats"]["reader"]
    assert (told["rate"], told["stall_s"], told["buffer_max"]) == (NEVER, 0.0, TOKENS - 1)
    assert 0 < told["effective_tokens"] < TOKENS


async def test_a_completion_has_no_reader_by_default(http):
    told = (await http.post("/v1/completions", json=TEXT)).json()["tandem"]["stats"]
    assert told["reader"] is None
