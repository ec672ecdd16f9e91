"""A session at an endpoint: what it takes for lost, and that a session ends once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import numpy as np
import pytest

from tandem.deployments.request.assignment import EndpointInfo, EndpointLost
from tandem.deployments.request.job import JobStats
from tandem.deployments.request.session import EndpointSession, Reach, RequestContext
from tandem.deployments.request.timeouts import Timeouts
from tandem.engine.base import (
    Engine,
    EngineStopped,
    Forward,
    Forwarded,
    InvalidRequest,
    NoCapacity,
    Sampling,
    Tensor,
    Tokens,
    UnknownSession,
)
from tandem.engine.null.engine import NullEngine, NullSession
from tests.deployments.faults import PROMPT, Failing

pytestmark = pytest.mark.virtual_time

IMPATIENT = Timeouts(connect_s=0.01, open_s=0.01, first_s=0.01, step_s=0.01)


class Counting(NullEngine):
    """cancels: how often it was told to end a session, open or not."""

    def __init__(self) -> None:
        super().__init__()
        self.cancels = 0

    class session_class(NullSession):
        _engine: Counting

        async def cancel(self) -> None:
            self._engine.cancels += 1
            await super().cancel()


class Stalling(NullEngine):
    """Never gives a token."""

    class session_class(NullSession):
        async def generate(self) -> AsyncGenerator[Tokens, None]:
            await asyncio.Event().wait()
            yield Tokens([])


def endpoint_session(
    engine: Engine,
    timeouts: Timeouts | None = None,
    expendable: bool = False,
    gone: list[EndpointInfo] | None = None,
    pool: str = "verifier",
) -> EndpointSession:
    async def dial(endpoint: EndpointInfo) -> Engine:
        return engine

    endpoint = EndpointInfo(pool, "here:1", pool)
    report = (gone if gone is not None else []).append
    return EndpointSession(endpoint, RequestContext(Reach(dial, report), JobStats(), timeouts), expendable)


async def test_a_session_that_the_mode_has_cancelled_is_not_cancelled_again() -> None:
    engine = Counting()
    place = endpoint_session(engine)
    await place.open(PROMPT, Sampling(max_tokens=4))
    await place.cancel()
    await place.close()
    assert engine.cancels == 1
    await place.open(PROMPT, Sampling(max_tokens=4))
    await place.close()
    await place.close()
    assert engine.cancels == 2
    assert (await engine.stats()).sessions == 0


async def test_a_session_that_was_not_opened_needs_no_closing() -> None:
    engine = Counting()
    await endpoint_session(engine).close()
    assert engine.cancels == 0


@pytest.mark.parametrize(
    "error", [EngineStopped("gone"), UnknownSession("restarted"), ConnectionResetError("reset")]
)
async def test_an_endpoint_that_is_gone_is_lost(error: Exception) -> None:
    gone: list[EndpointInfo] = []
    place = endpoint_session(Failing(NullEngine(), "open", error=lambda: error), gone=gone)
    assert not place.lost
    with pytest.raises(EndpointLost):
        await place.open(PROMPT, Sampling())
    assert place.lost
    assert gone == [place.endpoint]


async def test_an_endpoint_that_keeps_one_waiting_is_lost() -> None:
    gone: list[EndpointInfo] = []
    place = endpoint_session(Stalling(), IMPATIENT, gone=gone)
    await place.open(PROMPT, Sampling())
    for _ in range(2):
        with pytest.raises(EndpointLost, match="no answer to decode within 0.01 s"):
            await anext(place.generate())
    assert place.lost
    assert gone == [place.endpoint], "told once"


async def test_who_can_be_done_without_has_less_time_for_a_first_answer() -> None:
    timeouts = Timeouts(connect_s=1, open_s=1, first_s=60, step_s=0.01)
    place = endpoint_session(Stalling(), timeouts, expendable=True)
    await place.open(PROMPT, Sampling())
    with pytest.raises(EndpointLost, match="no answer to decode within 0.01 s"):
        await anext(place.generate())


@pytest.mark.parametrize("error", [NoCapacity("full"), InvalidRequest("odd")])
@pytest.mark.parametrize("expendable", [False, True])
async def test_a_refusal_is_a_loss_only_where_the_request_can_do_without(
    error: Exception, expendable: bool
) -> None:
    gone: list[EndpointInfo] = []
    place = endpoint_session(
        Failing(NullEngine(), "open", error=lambda: error), expendable=expendable, gone=gone
    )
    with pytest.raises(EndpointLost if expendable else type(error)):
        await place.open(PROMPT, Sampling())
    assert place.lost == expendable
    assert not gone, "it is full, not gone"


async def test_what_is_taken_in_after_the_prompt_does_not_replace_it_in_the_bill() -> None:
    place = endpoint_session(NullEngine())
    used = place._context.stats.used
    await place.open(PROMPT, Sampling(max_tokens=4))
    await place.extend(0, [20, 21])
    await anext(place.generate())
    assert (used.server_in, used.server_out) == (len(PROMPT) + 2, 1)
    await place.extend(0, [22])
    await place.close()
    assert used.server_in == len(PROMPT) + 3


class Holding(NullEngine):
    """Forwards when it is let. started: positions at which forwards began."""

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, capabilities=("forward",))
        self.started: list[int] = []
        self.let = asyncio.Event()

    class session_class(NullSession):
        _engine: Holding

        async def _forward(self, operation: Forward) -> Forwarded:
            self._engine.started.append(operation.position)
            await self._engine.let.wait()
            return await super()._forward(operation)


STATES = Tensor.of(np.zeros((3, 4), np.float32))


async def test_answers_are_received_in_the_order_in_which_states_were_sent() -> None:
    """And each is paid for when it is there; what was not answered, at the end."""
    engine = Holding()
    place = endpoint_session(engine)
    await place.open(PROMPT, Sampling(max_tokens=20))
    used = place._context.stats.used
    for at in (0, 3, 6):
        place.send(at, STATES, 0)
    await asyncio.sleep(0)
    assert (engine.started, place.on_their_way) == ([0, 3, 6], 3)
    engine.let.set()
    assert [(await place.receive()).forwarded.batch_tokens for _ in range(2)] == [3, 3]
    assert (place.on_their_way, used.server_in) == (1, 6)
    assert (await place.receive()).rows == STATES.shape[0]
    place.send(9, STATES, 0)
    await place.close()
    assert (place.on_their_way, used.server_in) == (0, 12 + len(PROMPT))


async def test_states_that_are_not_answered_in_time() -> None:
    engine = Holding()
    place = endpoint_session(engine, IMPATIENT)
    await place.open(PROMPT, Sampling(max_tokens=20))
    place.send(0, STATES, 0)
    place.send(3, STATES, 1)
    with pytest.raises(EndpointLost, match="no answer to forward within 0.01 s"):
        await place.receive()
    await place.close()
    assert place.lost
    assert (await engine.stats()).sessions == 0


async def test_an_adapter_is_the_targets_alone() -> None:
    adapted = Sampling(max_tokens=4, adapter="mine")
    with pytest.raises(InvalidRequest, match="no adapter 'mine'"):
        await endpoint_session(NullEngine()).open(PROMPT, adapted)
    helper = endpoint_session(NullEngine(), pool="drafter")
    await helper.open(PROMPT, adapted)
    await helper.close()


async def test_what_rounds_give_is_billed_and_what_is_only_taken_in_is_not() -> None:
    place = endpoint_session(NullEngine())
    used = place._context.stats.used
    await place.open(PROMPT, Sampling(max_tokens=50))
    verdict = await place.verify([20, 21])
    assert (used.server_in, used.server_out) == (len(PROMPT), len(verdict.ids))
    drafts = await place.draft(len(verdict.ids), [], 3)
    given_out = len(verdict.ids) + len(drafts.ids)
    assert used.server_out == given_out
    await place.extend(len(verdict.ids), [30, 31])
    assert (used.server_in, used.server_out) == (len(PROMPT), given_out), "it has not answered since"


async def test_only_states_that_were_wanted_back_tell_how_fast_it_answers() -> None:
    """After states of which none were wanted back, an answer may take as long as a first one."""
    engine = Holding()
    engine.let.set()
    place = endpoint_session(engine)
    await place.open(PROMPT, Sampling(max_tokens=20))
    limits_s = []
    for at, wanted in enumerate((0, 1, 1)):
        place.send(3 * at, STATES, wanted)
        await place.receive()
        limits_s.append(place._limit_s())
    timeouts = place._context.timeouts
    assert limits_s[0] == timeouts.first_s, "it has answered nothing yet"
    assert limits_s[1] != timeouts.first_s
    assert limits_s[2] != timeouts.first_s
