"""A session at an endpoint: what it takes for lost, and that a session ends once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from math import inf
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem.deployments.request.assignment import Assignment, EndpointInfo, EndpointLost
from tandem.deployments.request.job import JobStats
from tandem.deployments.request.session import EndpointSession, EndpointSessions, Reach, RequestContext
from tandem.deployments.request.timeouts import Timeouts
from tandem.engine.base import (
    Engine,
    EngineStats,
    EngineStopped,
    Extend,
    Forward,
    Forwarded,
    InvalidRequest,
    NoCapacity,
    Operation,
    Sampling,
    Tensor,
    TokenLogprob,
    Tokens,
    UnknownSession,
    Verdict,
)
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.reader.stall_timeout import FLOOR_S, PROBE_S, QUIET_S
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
    context = RequestContext(Reach(dial, report), JobStats(), timeouts)
    return EndpointSession(endpoint, context, expendable, replaceable=False)


async def test_a_session_that_the_mode_has_cancelled_is_not_cancelled_again() -> None:
    engine = Counting()
    place = endpoint_session(engine)
    await place.open(PROMPT, Sampling(max_tokens=4))
    await place.cancel()
    await place.close()
    assert engine.cancels == 1
    await place.open(PROMPT, Sampling(max_tokens=4), [20])
    await place.close()
    await place.close()
    assert engine.cancels == 2
    assert place._context.stats.used.server_in == 2 * len(PROMPT) + 1
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
    assert (place.on_their_way, used.server_in, used.server_out) == (1, 6, 0)
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
    drafts = await place.draft(len(verdict.ids), [22], 3)
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


class Late(NullEngine):
    """Gives its first `ready` tokens at once and the next one after `takes_s`. silent: it does not answer probes."""

    def __init__(self, takes_s: float, silent: bool = False, ready: int = 1) -> None:
        super().__init__()
        self.takes_s, self.silent, self.ready = takes_s, silent, ready

    async def stats(self) -> EngineStats:
        if self.silent:
            await asyncio.Event().wait()
        return await super().stats()

    class session_class(NullSession):
        _engine: Late

        async def generate(self) -> AsyncGenerator[Tokens, None]:
            given = 0
            async for tokens in super().generate():
                if given == self._engine.ready:
                    await asyncio.sleep(self._engine.takes_s)
                given += 1
                yield tokens


class Waiting:
    """A session at an endpoint, and what became of it. asked: how often the router was asked for another endpoint."""

    def __init__(
        self,
        engine: Engine,
        replaceable: bool,
        other: bool = False,
        looks_s: float = 0.0,
        reached_s: float = -inf,
        **where: Any,
    ) -> None:
        """other, looks_s: whether there is another endpoint by now, and how long the router takes to say so; reached_s:
        since when the cloud can be reached."""
        self.asked = 0

        async def dial(endpoint: EndpointInfo) -> Engine:
            return engine

        async def replaces(endpoint: EndpointInfo) -> bool:
            self.asked += 1
            await asyncio.sleep(looks_s)
            return other

        reach = Reach(dial, replaces=replaces, reached_s=lambda: reached_s)
        self.context = RequestContext(reach, JobStats(), Timeouts(first_s=100.0, step_s=50.0, open_s=30.0))
        endpoint = EndpointInfo("there", "here:1", "verifier", **where)
        self.session = EndpointSession(endpoint, self.context, False, replaceable)

    async def decode(self) -> str:
        """Return why the endpoint was lost; "" if it was not."""
        try:
            await self.session.open(PROMPT, Sampling(max_tokens=4))
            async for _ in self.session.generate():
                pass
        except EndpointLost as error:
            return str(error)
        return ""


SILENT_S = QUIET_S + PROBE_S


@pytest.mark.parametrize("replaceable", [False, True])
@pytest.mark.parametrize("ready", [0, 1])
async def test_an_endpoint_that_is_late_and_says_that_it_goes_on_is_waited_for(
    replaceable: bool, ready: int
) -> None:
    waiting = Waiting(Late(FLOOR_S - 0.5, ready=ready), replaceable, other=True)
    assert await waiting.decode() == ""
    assert not waiting.asked


@pytest.mark.parametrize(
    ("replaceable", "other", "looks_s", "given_up_s"),
    [
        (True, False, 0.0, SILENT_S),
        (False, True, 0.0, SILENT_S),
        (False, True, 20.0, SILENT_S + 20.0),
        (False, False, 97.0, 100.0),
    ],
)
async def test_a_silent_endpoint_is_given_up_once_another_can_go_on(
    replaceable: bool, other: bool, looks_s: float, given_up_s: float
) -> None:
    waiting = Waiting(Late(1e6, silent=True, ready=0), replaceable, other, looks_s)
    assert f"within {given_up_s:g} s" in await waiting.decode()
    assert asyncio.get_running_loop().time() == pytest.approx(given_up_s)
    assert waiting.asked == (not replaceable), "once at a time"


@pytest.mark.parametrize(
    ("reached_s", "at_once"), [(0.0, True), (QUIET_S, True), (QUIET_S + 0.1, False), (SILENT_S, False)]
)
async def test_silence_counts_only_where_the_cloud_could_be_reached_all_the_time(
    reached_s: float, at_once: bool
) -> None:
    waiting = Waiting(Late(1e6, silent=True, ready=0), replaceable=True, reached_s=reached_s)
    assert await waiting.decode() != ""
    given_up_s = asyncio.get_running_loop().time()
    assert (given_up_s <= SILENT_S + 1e-6) == at_once
    assert given_up_s <= 2 * SILENT_S + 1e-6, "it is asked again"


@pytest.mark.parametrize(("silent", "doubled"), [(True, 1), (False, 2)])
async def test_only_endpoints_that_are_there_and_late_make_it_wait_longer_for_others(
    silent: bool, doubled: int
) -> None:
    waiting = Waiting(Late(1e6, silent), replaceable=True)
    assert f"no answer to decode within {SILENT_S if silent else FLOOR_S:g} s" in await waiting.decode()
    assert waiting.context.patience.next_s(0.0, True, 0.0) == doubled * FLOOR_S


class Closed(NullEngine):
    """Never says whether it admits a session."""

    async def open(self, *asked: Any) -> NullSession:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("device", "replaceable", "limit_s"),
    [(True, True, FLOOR_S), (True, False, 30.0), (False, True, 30.0), (False, False, 30.0)],
)
async def test_only_a_device_that_can_be_replaced_is_waited_for_no_longer_than_usual(
    device: bool, replaceable: bool, limit_s: float
) -> None:
    """A verifier's load would only move to another one."""
    waiting = Waiting(Closed(), replaceable, device=device)
    assert f"no answer to open within {limit_s:g} s" in await waiting.decode()
    slow = Waiting(Closed(), replaceable, device=device, prefill_token_s=2.0)
    usual_s = 3 * 2.0 * len(PROMPT) if device and replaceable else 30.0
    assert f"no answer to open within {usual_s:g} s" in await slow.decode()


@pytest.mark.parametrize(("replaceable", "limit_s"), [(True, SILENT_S), (False, Timeouts().connect_s)])
async def test_an_endpoint_that_can_be_replaced_is_dialled_no_longer_than_a_silent_one(
    replaceable: bool, limit_s: float
) -> None:
    async def dial(endpoint: EndpointInfo) -> Engine:
        await asyncio.Event().wait()
        raise AssertionError

    context = RequestContext(Reach(dial), JobStats())
    session = EndpointSession(EndpointInfo("v", "here:1", "verifier"), context, False, replaceable)
    with pytest.raises(EndpointLost, match=f"no answer to connect within {limit_s:g} s"):
        await session.connect()


async def test_an_endpoint_that_was_full_once_is_remembered_as_full() -> None:
    class FullAtFirst(NullEngine):
        full = True

        async def open(self, *asked: Any) -> NullSession:
            if self.full:
                self.full = False
                raise NoCapacity("full")
            return await super().open(*asked)

    place = endpoint_session(FullAtFirst())
    with pytest.raises(NoCapacity):
        await place.open(PROMPT, Sampling())
    assert place.full
    await place.open(PROMPT, Sampling(max_tokens=4))
    with pytest.raises(InvalidRequest):
        await place.extend(100, [20])
    assert (place.full, place.refused) == (True, False)


async def test_an_endpoint_of_no_use_is_lost_and_not_gone() -> None:
    gone: list[EndpointInfo] = []
    place = endpoint_session(NullEngine(), gone=gone)
    assert str(place.unfit("of another vocabulary")) == str(
        EndpointLost(place.endpoint, "of another vocabulary")
    )
    assert place.lost
    assert not gone


async def test_an_endpoint_that_came_later_can_be_done_without_and_replaced() -> None:
    async def dial(endpoint: EndpointInfo) -> Engine:
        return Closed()

    here, later = (EndpointInfo(name, name, "device", device=True) for name in ("here", "later"))
    context = RequestContext(Reach(dial), JobStats())
    sessions = EndpointSessions(Assignment("cloud", {"target": here}), context)
    added = sessions.at(later)
    assert sessions.all == [sessions["target"], added]
    with pytest.raises(EndpointLost, match=f"no answer to open within {FLOOR_S:g} s"):
        await added.open(PROMPT, Sampling())


async def test_scores_are_taken_in_and_the_targets_own_token_is_taken_back() -> None:
    asked: list[tuple[int, int]] = []

    class Scoring(NullEngine):
        class session_class(NullSession):
            async def call(self, operation: Operation[Any]) -> Any:
                if isinstance(operation, Extend):
                    asked.append((operation.position, len(operation.ids)))
                    return None
                return Verdict(2, [20, 21, 3], None, [TokenLogprob(-1.0)] * 3)

    place = endpoint_session(Scoring())
    used = place._context.stats.used
    await place.open(PROMPT, Sampling(max_tokens=50))
    assert await place.score(4, [20, 21]) == [TokenLogprob(-1.0)] * 2
    assert asked == [(6, 0)]
    assert (used.server_in, used.server_out) == (len(PROMPT) + 2, 0)


async def test_an_engine_is_told_how_long_the_request_has_waited_elsewhere() -> None:
    told: list[float] = []

    class Told(NullEngine):
        async def open(
            self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
        ) -> NullSession:
            told.append(sampling.waited_s)
            return await super().open(prompt, sampling, log)

    engine = Told()
    place = endpoint_session(engine)
    await place.open(PROMPT, Sampling(max_tokens=4))
    place._context.waited_s = 1.5
    await place.open(PROMPT, Sampling(max_tokens=4))
    assert told == [0.0, 1.5]
    assert place.info is engine.info
