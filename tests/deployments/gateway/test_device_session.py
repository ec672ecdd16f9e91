"""A device that has dialled in, without Ray: on its own account it reaches what the router sent it to, nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.wire.client import Connection, connect
from tandem.cluster.wire.frames import Hello, ProtocolError, Unauthorized, UnknownEngine
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.access.accounts import Statement, Terms
from tandem.deployments.access.client.caller_cache import Callers
from tandem.deployments.access.keys import Caller, Role, digest
from tandem.deployments.admission.client import Entrance
from tandem.deployments.admission.entry import Entry, LimitReached, Passage
from tandem.deployments.gateway import metering
from tandem.deployments.gateway.device_session import (
    PATIENCE,
    SESSIONS,
    UNDER_WAY,
    Cloud,
    ConnectedDevice,
    DeviceIdentity,
)
from tandem.deployments.gateway.messages import (
    ACCOUNT,
    ASSIGN,
    ECHO,
    MIDDLES,
    OVER,
    REGISTER,
    AssignmentMessage,
    Over,
    Registered,
    pack,
    unpack,
)
from tandem.deployments.learning.report import Report
from tandem.deployments.request.assignment import Assignment, EndpointInfo, Prices, RoutingRequest
from tandem.deployments.request.bill import Bill
from tandem.deployments.request.job import UnknownMode
from tandem.engine.base import Engine, EngineError, InvalidRequest, NoCapacity, Sampling, SplitInfo
from tandem.engine.null.engine import NullEngine
from tandem.policies.cost import PerToken, Used
from tests.deployments.faults import Failing

KEY = "tandem-secret"
CALLER = Caller("key-1", Role.DEVICE, Terms(0.5, 1e-3, devices=("laptop",)), True, "laptop")
TARGET = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier")
OTHER = EndpointInfo("verifier 2", "10.0.0.2:1", "verifier")
MIDDLE = SplitInfo("a1", 2, 12, 512)
RECORD = DeviceRecord(name="bank", address="10.0.0.9:1", profile="native", model="small", vocabulary="v")
WANTED = RoutingRequest("cloud", request=7, prompt_tokens=3, account="key-2", devices=("phone",))


@pytest.fixture(autouse=True)
def told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(metering, "BOOK_S", 3600.0)


@dataclass
class Office:
    """The cloud of these tests: what it was asked, and what it says."""

    caller: Caller | None = CALLER
    passage: Exception | None = None
    refusal: Exception | None = None
    asked: list[RoutingRequest] = field(default_factory=list)
    entered: list[Any] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    booked: int = 0
    accounts: list[str] = field(default_factory=list)
    engine: Engine = field(default_factory=NullEngine)
    model: str = ""
    registered: list[DeviceRecord] = field(default_factory=list)
    router_knows: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.router_knows.set()
        self.answers.set()

    async def register(self, record: DeviceRecord) -> None:
        self.registered.append(record)
        await self.router_knows.wait()

    async def assign(self, wanted: RoutingRequest) -> Assignment:
        self.asked.append(wanted)
        if self.refusal is not None:
            raise self.refusal
        prices = Prices(PerToken(1.0, 10.0), 1e-3)
        return Assignment(wanted.mode or "cloud", {"target": TARGET}, None, prices)

    async def account(self, key: str) -> Statement:
        self.accounts.append(key)
        return Statement(Terms(0.5, 1e-3), Bill(), {}, {})

    async def middles(self, model: str) -> tuple[SplitInfo, ...]:
        return (MIDDLE,) if model == "" else ()

    async def dial(self, endpoint: EndpointInfo) -> Engine:
        assert endpoint == TARGET
        return self.engine

    async def enter(
        self, replica: str, entry: Entry, left: Sequence[int], wanted: Sequence[RoutingRequest] = ()
    ) -> Passage:
        self.entered.append(entry)
        self.gone += left
        await asyncio.sleep(0)
        if self.passage is not None:
            raise self.passage
        return Passage()

    def left(self, replica: str, requests: Sequence[int]) -> None:
        self.gone += requests

    def under_way(self, replica: str, entries: Sequence[Entry]) -> None: ...

    async def find(self, hashed: str | None) -> Caller | None:
        await self.answers.wait()
        return self.caller if hashed == digest(KEY) else None

    async def book(self) -> None:
        self.booked = len(self.reports)

    def cloud(self) -> Cloud:
        entrance = Entrance(self, lambda: None)
        return Cloud(
            self.assign,
            self.account,
            self.middles,
            self.register,
            self.reports.append,
            self.book,
            self.dial,
            entrance,
            self.model,
        )


@asynccontextmanager
async def dialled(office: Office) -> AsyncIterator[tuple[Connection, ConnectedDevice]]:
    """A device's connection to a gateway, and the gateway's side of it."""
    callers = Callers(office.find, clock=lambda: next(ticks))
    ticks = iter(range(0, 10**9, 10))  # nothing is known for long
    devices: list[ConnectedDevice] = []
    cloud = office.cloud()

    async def admit(hello: Hello) -> DeviceIdentity:
        return DeviceIdentity.of(await callers.of(digest(hello.token)), digest(hello.token))

    def greet(connection: Connection) -> ConnectedDevice:
        devices.append(ConnectedDevice(connection, callers, cloud))
        return devices[-1]

    async with serve_engines({}, auth=admit, handler=greet) as endpoint:
        connection = await connect(endpoint.address, token=KEY)
        yield connection, devices[0]
        await connection.close()
    cloud.entrance.close()


async def assigned(connection: Connection, wanted: RoutingRequest = WANTED) -> AssignmentMessage:
    return unpack(await connection.ask(ASSIGN, pack(wanted)), AssignmentMessage)


async def test_its_key_says_who_it_is_and_who_pays() -> None:
    office = Office()
    async with dialled(office) as (connection, device):
        said = unpack(await connection.ask(REGISTER, pack(RECORD)), Registered)
        assert said == Registered("laptop", "key-1")
        present = device.present("10.0.0.5:2")
        assert present is not None
        assert (present.name, present.address, present.dialled_in) == ("laptop", "10.0.0.5:2", True)
        told = await assigned(connection)
        assert told.assignment(told.endpoints).endpoints == {"target": TARGET}
        (wanted,) = office.asked
        assert (wanted.account, wanted.device, wanted.devices) == ("key-1", "laptop", ("laptop",))
        assert (wanted.request, wanted.prompt_tokens) == (7, 3)
        await connection.ask(ACCOUNT, pack(None))
        assert office.accounts == ["key-1"]
        said = unpack(await connection.ask(REGISTER, pack(RECORD)), Registered)
        assert said.budget == 0.5, "once its key was looked at"


async def test_it_may_ask_which_middles_there_are_and_how_far_it_is() -> None:
    async with dialled(Office()) as (connection, _):
        for model, middles in (("", (MIDDLE,)), ("other", ())):
            assert unpack(await connection.ask(MIDDLES, pack(model)), tuple[SplitInfo, ...]) == middles
        assert await connection.ask(ECHO, b"hello") == b"hello"


@pytest.mark.parametrize(
    "caller",
    [
        None,
        replace(CALLER, role=Role.USER),
        replace(CALLER, role=Role.OPERATOR, keyed=False),
    ],
)
async def test_nobody_else_is_let_in(caller: Caller | None) -> None:
    with pytest.raises(Unauthorized, match="no device's key"):
        async with dialled(Office(caller)):
            pass


async def test_a_revoked_key_is_good_for_nothing_more() -> None:
    office = Office()
    async with dialled(office) as (connection, device):
        await assigned(connection)
        office.caller = None
        with pytest.raises(Unauthorized):
            await assigned(connection)
        with pytest.raises(Unauthorized):
            await device.caller()


@pytest.mark.parametrize("mode", [None, "race", "no such mode"])
async def test_modes_that_are_not_driven_from_devices(mode: str | None) -> None:
    async with dialled(Office()) as (connection, _):
        with pytest.raises(EngineError, match="not driven from devices") as refused:
            await assigned(connection, replace(WANTED, mode=mode))
        assert refused.value.code == UnknownMode.code


async def test_its_keys_terms_hold() -> None:
    office = Office(replace(CALLER, terms=replace(CALLER.terms, modes=("split",))))
    async with dialled(office) as (connection, _):
        with pytest.raises(EngineError, match="may not use mode 'cloud'"):
            await assigned(connection)
        assert not office.asked


async def test_it_reaches_only_where_the_router_has_sent_it() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        for key in (TARGET.key, OTHER.key, "verifier@127.0.0.1:22"):
            with pytest.raises(UnknownEngine, match="is not assigned to this device"):
                await connection.find(key)
        await assigned(connection)
        assert (await connection.find(TARGET.key)).info == NullEngine().info
        with pytest.raises(UnknownEngine):
            await connection.find(OTHER.key)


async def test_its_trace_goes_on_at_the_router() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        await assigned(connection, replace(WANTED, trace="00-1-2-01"))
        assert [wanted.trace for wanted in office.asked] == ["00-1-2-01"]


async def test_what_it_was_given_is_counted_where_it_passes() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        await assigned(connection, replace(WANTED, prompt_tokens=5))
        engine = await connection.find(TARGET.key)
        session = await engine.open([1, 2, 3], Sampling(max_tokens=10, ignore_eos=True), [4, 5])
        given = [i async for tokens in session.generate() for i in tokens.ids]
        await session.cancel()
        (report,) = office.reports
        assert (report.account, report.device, report.tokens) == ("key-1", "laptop", len(given))
        assert report.bill.used == Used(server_in=5, server_out=len(given))
        assert report.bill.server_usd == 5 * 1.0 + len(given) * 10.0
        assert not office.gone
        # It says what its own part was; of the cloud's it is not believed.
        said = Over(7, Used(server_in=-1000, server_out=-1000, device_in=2, device_out=9), joules=4.0)
        await connection.ask(OVER, pack(said))
        await connection.ask(OVER, pack(said))  # once is enough
        _, own = office.reports
        assert own.bill.used == Used(device_in=2, device_out=9)
        assert (own.bill.requests, own.bill.joules, own.bill.device_usd) == (1, 4.0, 4e-3)


async def test_a_session_is_counted_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a gateway that is killed takes along what its devices owe."""
    monkeypatch.setattr(metering, "BOOK_S", 0.0)
    office = Office()
    async with dialled(office) as (connection, _):
        await assigned(connection)
        session = await (await connection.find(TARGET.key)).open([1, 2, 3], Sampling(max_tokens=10))
        await connection.ask(ECHO, b"")  # a turn of the loop later
        assert [report.bill.used for report in office.reports] == [Used(server_in=3)]
        await session.verify([])
        await connection.ask(ECHO, b"")
        assert [report.bill.used for report in office.reports[1:]] == [Used(server_out=1)]
        await session.cancel()
        assert len(office.reports) == 2


async def test_a_request_that_another_gateway_has_assigned_is_billed_here_once() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        await connection.ask(OVER, pack(Over(5, Used(), 0.0, assigned=False)))
        assert not office.reports, "nobody has assigned it"
        for _ in range(2):
            await connection.ask(OVER, pack(Over(7, Used(device_out=9), joules=4.0)))
            assert office.booked == 1, "it is on disk before the device is told so"
        (report,) = office.reports
        assert report.bill == Bill(requests=1, used=Used(device_out=9), joules=4.0, device_usd=4e-3)


@pytest.mark.parametrize(("named", "model"), [("", "first"), ("other", "other")])
async def test_the_clouds_model_is_the_devices_choice_or_the_gateways(named: str, model: str) -> None:
    office = Office(model="first")
    async with dialled(office) as (connection, _):
        await assigned(connection, replace(WANTED, model=named))
        engine = await connection.find(TARGET.key)
        session = await engine.open([1, 2, 3], Sampling(max_tokens=2))
        await session.cancel()
        (wanted,), (entry,), (report,) = office.asked, office.entered, office.reports
        assert wanted.model == entry.model == report.model == model


async def test_an_answer_is_billed_with_the_mode_it_was_driven_in() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        await assigned(connection, replace(WANTED, mode="speculative"))
        engine = await connection.find(TARGET.key)
        session = await engine.open([1, 2, 3], Sampling(max_tokens=2))
        await session.cancel()
        await assigned(connection, replace(WANTED, request=8))
        for request in (7, 8):
            await connection.ask(OVER, pack(Over(request, Used(device_out=request), 0.0)))
        modes = [(report.mode, report.bill.used.device_out) for report in office.reports]
        assert modes == [("speculative", 0), ("speculative", 7), ("cloud", 8)]


async def test_sessions_are_for_requests_that_have_passed_the_gate() -> None:
    office = Office()
    async with dialled(office) as (connection, device):
        await assigned(connection)
        engine = await connection.find(TARGET.key)
        for _ in range(SESSIONS):
            await engine.open([1, 2, 3], Sampling(max_tokens=10))
        with pytest.raises(NoCapacity, match="1 requests cannot have 5 sessions"):
            await engine.open([1, 2, 3], Sampling(max_tokens=10))
        await assigned(connection, replace(WANTED, request=8))
        kept = await engine.open([1, 2, 3], Sampling(max_tokens=10))
        for request in (7, 8):
            await connection.ask(OVER, pack(Over(request, Used(), 0.0)))
        with pytest.raises(NoCapacity, match="0 requests"):
            await engine.open([1, 2, 3], Sampling(max_tokens=10))
        for _ in range(PATIENCE):
            await device.tidy()
        assert device.sessions == SESSIONS + 1, "they may be on their way"
        await device.tidy()
        assert device.sessions == 0
        with pytest.raises(EngineError):
            await kept.verify([])
        stats = await office.engine.stats()
        assert stats.sessions == 0


async def test_tokens_that_were_not_announced_count_at_the_gate() -> None:
    """Or a limit of tokens a minute could be talked round."""
    office = Office()
    async with dialled(office) as (connection, _):
        await assigned(connection, replace(WANTED, prompt_tokens=10))
        engine = await connection.find(TARGET.key)
        for prompt in (8, 8):
            session = await engine.open(list(range(1, prompt + 1)), Sampling(max_tokens=10))
            await session.verify([])
            await session.cancel()
    assert [report.tokens for report in office.reports] == [1, 1 + 6]


async def test_a_session_that_it_abandons_is_counted_too() -> None:
    office = Office()
    async with dialled(office) as (connection, device):
        await assigned(connection)
        engine = await connection.find(TARGET.key)
        session = await engine.open([1, 2, 3], Sampling(max_tokens=10))
        await session.verify([])
    await device._connection.finished
    (report,) = office.reports
    assert report.bill.used == Used(server_in=3, server_out=1)
    assert office.gone == [office.entered[0].request], "and its place is free"


async def test_a_request_that_nobody_can_serve_has_no_place() -> None:
    office = Office(refusal=NoCapacity("all are full", 1.0))
    async with dialled(office) as (connection, _):
        with pytest.raises(NoCapacity):
            await assigned(connection)
        office.refusal = None
        await assigned(connection)
        office.refusal = NoCapacity("all are full", 1.0)
        with pytest.raises(NoCapacity):
            await assigned(connection)  # half an answer keeps its own
        (first, second) = office.entered
    assert office.gone[0] == first.request
    assert second.request != first.request


async def test_where_there_is_no_room_it_cannot_say_by_itself() -> None:
    """Or it could keep room for itself everywhere: others do not begin where half an answer waits for some."""
    full = Failing(NullEngine(), "open", 0, lambda: NoCapacity("full", 1.0))
    office = Office(engine=full)
    async with dialled(office) as (connection, _):
        said = replace(WANTED, full=(TARGET.key, OTHER.key), sent=1)
        await assigned(connection, said)
        engine = await connection.find(TARGET.key)
        with pytest.raises(NoCapacity):
            await engine.open([1], Sampling(max_tokens=2))
        await assigned(connection, said)
    assert full.fired
    assert [wanted.full for wanted in office.asked] == [(), (TARGET.key,)]


@pytest.mark.parametrize(
    "wrong",
    [{"profile": "x" * 201}, {"prefill_token_s": math.nan}, {"decode_token_s": -1.0}, {"capacity": -1}],
)
async def test_what_it_says_of_itself_is_of_the_kind_that_others_can_bear(wrong: dict[str, Any]) -> None:
    async with dialled(Office()) as (connection, device):
        with pytest.raises(InvalidRequest):
            await connection.ask(REGISTER, pack(msgspec.structs.replace(RECORD, **wrong)))
        assert device.record is None


async def test_a_request_passes_the_gate_once() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        for _ in range(3):  # endpoints fail
            await assigned(connection, replace(WANTED, priority=-2))
        (entry,) = office.entered
        assert (entry.account, entry.prompt_tokens, entry.priority) == ("key-1", 3, -2)
        office.passage = LimitReached("at most 1 answers at once", 2.5)
        with pytest.raises(EngineError, match="at most 1 answers") as refused:
            await assigned(connection, replace(WANTED, request=8))
        assert refused.value.code == LimitReached.code
        office.passage = None
        await assigned(connection, replace(WANTED, request=8))


async def test_a_request_that_is_said_twice_at_once_has_one_place() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        await asyncio.gather(assigned(connection), assigned(connection))
        assert len(office.entered) == 2
    assert len({entry.request for entry in office.entered}.intersection(office.gone)) == 2


async def test_it_cannot_have_any_number_of_requests_under_way() -> None:
    office = Office()
    async with dialled(office) as (connection, _):
        wanted = [replace(WANTED, request=i) for i in range(UNDER_WAY)]
        await asyncio.gather(*(assigned(connection, each) for each in wanted))
        with pytest.raises(NoCapacity):
            await assigned(connection, replace(WANTED, request=UNDER_WAY))


@pytest.mark.parametrize("method", [REGISTER, ASSIGN, OVER, "no such method"])
@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1", b"\x93\x01\x02\x03" * 9, b"\x80"])
async def test_what_makes_no_sense_is_refused(method: str, body: bytes) -> None:
    """And the connection is still good."""
    office = Office()
    async with dialled(office) as (connection, _):
        with pytest.raises(EngineError) as refused:
            await connection.ask(method, body)
        assert refused.value.code in (ProtocolError.code, UnknownMode.code)
        assert not office.asked
        await assigned(connection)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (ASSIGN, replace(WANTED, prompt_tokens=-1000)),
        (ASSIGN, replace(WANTED, max_tokens=0)),
        (ASSIGN, replace(WANTED, sent=-1)),
        (OVER, Over(7, Used(device_in=-5), 0.0)),
        (OVER, Over(7, Used(), -1.0)),
        (OVER, Over(7, Used(), math.inf)),
        (OVER, Over(7, Used(), math.nan)),
    ],
)
async def test_nothing_costs_less_than_nothing(method: str, said: object) -> None:
    """Else it could pay back what it has used."""
    office = Office()
    async with dialled(office) as (connection, _):
        if method == OVER:
            await assigned(connection)
        asked = len(office.asked)
        with pytest.raises(InvalidRequest):
            await connection.ask(method, pack(said))
        assert (len(office.asked), office.reports) == (asked, [])


async def test_two_devices_may_say_the_same_number() -> None:
    office = Office()
    async with dialled(office) as (one, _), dialled(office) as (other, _):
        await assigned(one)
        await assigned(other)
        assert len({entry.request for entry in office.entered}) == 2
