"""Backend of a device's API, without a cloud."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tandem.app.api.routes import create_api
from tandem.app.device.backend import DeviceBackend
from tandem.app.device.local_router import SOON_S
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.access.accounts import ANONYMOUS
from tandem.deployments.access.keys import KeyRefused
from tandem.deployments.gateway.client import WAIT_S, Uplink
from tandem.deployments.gateway.messages import ASSIGN, AssignmentMessage, Registered, pack, unpack
from tandem.deployments.request.assignment import Assignment, EndpointInfo, NoEndpoint, RoutingRequest
from tandem.deployments.request.job import Delta, Job, NoSuchDevice, UnknownMode
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.base import Engine, EngineInfo, EngineStopped, InvalidRequest, Sampling, SplitInfo
from tandem.engine.null.engine import NullEngine
from tandem.engine.split.base import OuterEngine
from tandem.engine.text.tokenizer import Tokenizer
from tests.app.device.test_settings import LEAST
from tests.engine.torch.split_parts import Parts
from tests.servers import served
from tests.virtual import in_virtual_time, now_s


@pytest.fixture
def uplink() -> Uplink:
    settings = DeviceProgram.model_validate(LEAST)
    device = Device(NullEngine(), load_profile("native"))
    return Uplink(settings.connect, "key", device, lambda: device.record(""), settings=settings.wire())


@pytest.fixture
def backend(uplink: Uplink) -> DeviceBackend:
    """Return the backend of a device whose own model is not split."""
    device, speaks = Device(NullEngine(), load_profile("native")), Tokenizer.load(family.path("target"))
    settings = DeviceProgram.model_validate(LEAST)
    return DeviceBackend(settings, device, lambda: device.record(""), speaks, None, speaks, uplink)


async def test_who_asks_is_the_devices_key(backend: DeviceBackend, uplink: Uplink) -> None:
    """The cloud names the key once it is connected; a request may name the device, or not."""
    caller = await backend.caller(None)
    assert caller is not None
    assert caller.account == ANONYMOUS
    uplink.registered = Registered("laptop", "key-1")
    for hashed in (None, "whatever key a client sends"):
        caller = await backend.caller(hashed)
        assert caller is not None
        assert (caller.account, caller.at("laptop").account, caller.keyed) == ("key-1", "key-1", False)
    with pytest.raises(KeyRefused):
        await backend.account("key-2")


async def test_it_has_this_machines_name_until_the_cloud_names_it(
    backend: DeviceBackend, uplink: Uplink
) -> None:
    assert [one["name"] for one in await backend.devices()] == [socket.gethostname()]
    uplink.registered = Registered("laptop", "key-1")
    assert [one["name"] for one in await backend.devices()] == ["laptop"]


async def test_it_sends_tokens_to_those_alone_who_know_them(backend: DeviceBackend) -> None:
    verifier = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "large", "another")
    with pytest.raises(InvalidRequest, match="another vocabulary"):
        await backend._dial(verifier)
    with pytest.raises(EngineStopped, match="no connection"):
        await backend._dial(replace(verifier, vocabulary=backend.models()[0].vocabulary))


async def test_what_stays_here(backend: DeviceBackend) -> None:
    """A text stays where the device's own model answers, and without a split model that is so if no mode is named."""
    modes = (None, "device", "split", "speculative", "race", "cloud")
    assert [mode for mode in modes if backend.stays(mode)] == [None, "device"]
    async with split_device(Line()) as split:
        assert [mode for mode in modes if split.stays(mode)] == ["device"]


async def test_modes_that_it_drives(backend: DeviceBackend) -> None:
    for mode in ("cloud", "device", "speculative", "race"):
        backend.check(mode)
    for mode in ("split", "sketch"):
        with pytest.raises(UnknownMode):
            backend.check(mode)


SPEAKS = Tokenizer.load(family.path("target"))
SAMPLING = Sampling(max_tokens=3, ignore_eos=True)
SPLIT = SplitInfo("a1", 2, 12, 512)
MIDDLE = EndpointInfo("middle 1", "10.0.0.1:1", "middle", vocabulary=SPEAKS.vocabulary, split=SPLIT)


class Ends:
    """The two ends of a split model, of which nothing is asked before there is a middle."""

    kind = "float16"
    info = EngineInfo("target", SPEAKS.vocabulary, 1000, 4096, 0, ("forward",), SPLIT)
    open_sessions = 0

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Ends:
        self.open_sessions += 1
        return self

    async def cancel(self) -> None:
        self.open_sessions -= 1


class Line:
    """A connection to a cloud which dies without a word: `assigns` requests are assigned a middle, and nothing else is
    ever answered. heard_s: when something came last; None: just now."""

    rtt_s = 0.02

    def __init__(self, assigns: int = 0) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self.reached_s, self.assigns = 0.0, assigns
        self.heard_s: float | None = None
        self.found = self.pings = 0
        self.dialling: asyncio.Future[Engine] | None = None

    def ping(self) -> None:
        self.pings += 1

    @property
    def quiet_s(self) -> float:
        return 0.0 if self.heard_s is None else now_s() - self.heard_s

    async def ask(self, method: str, body: bytes) -> bytes:
        if method == ASSIGN and self.assigns:
            self.assigns -= 1
            return pack(AssignmentMessage.of(Assignment("split", {"middle": MIDDLE})))
        return await asyncio.get_running_loop().create_future()

    async def find(self, key: str) -> Engine:
        self.found += 1
        self.dialling = asyncio.get_running_loop().create_future()
        return await self.dialling

    def lose(self, why: str) -> None:
        """End the connection, and what waits for an engine there."""
        self.closed.set_result(None)
        if self.dialling is not None:
            self.dialling.set_exception(EngineStopped(why))

    async def close(self) -> None:
        self.closed.set_result(None)


async def everything(deltas: AsyncIterator[Delta]) -> list[Delta]:
    """Read an answer to its end."""
    return [delta async for delta in deltas]


@asynccontextmanager
async def split_device(line: Line, outer: OuterEngine | None = None) -> AsyncIterator[DeviceBackend]:
    settings = DeviceProgram.model_validate(LEAST)
    device, ends = Device(NullEngine(), load_profile("native")), Ends()
    uplink = Uplink(settings.connect, "key", device, lambda: device.record(""), settings=settings.wire())
    uplink._connection = line
    uplink._reached.set()
    yield DeviceBackend(settings, device, lambda: device.record(""), SPEAKS, outer or ends, SPEAKS, uplink)
    await asyncio.sleep(0)
    assert ends.open_sessions == 0


@in_virtual_time
@pytest.mark.parametrize("assigns", [0, 1], ids=["before-the-assignment", "after-it"])
@pytest.mark.parametrize("away", [False, True], ids=["silent", "broken"])
@pytest.mark.parametrize("mode", [None, "split"])
async def test_when_the_cloud_dies_the_device_answers_within_a_second(
    mode: str | None, away: bool, assigns: int
) -> None:
    """Also what names mode split and has no token yet, though the connection may yet be resumed; the answer says so."""
    line = Line(assigns)
    async with split_device(line) as backend:
        assert backend._uplink.up
        line.heard_s = now_s()
        answer = backend.run(Job(1, (20, 21), SAMPLING, mode=mode))
        asyncio.get_running_loop().call_later(0.5, setattr, line, "away", away)
        deltas = [delta async for delta in answer]
        assert {origin for delta in deltas for origin in delta.origins} == {Origin.DEVICE}
        assert sum(len(delta.ids) for delta in deltas) == SAMPLING.max_tokens
        assert deltas[-1].stats is not None
        assert deltas[-1].stats.mode == "device"
        assert now_s() == pytest.approx(WAIT_S, abs=0.1)
        assert line.pings > 2, "it was asked whether it is there"
        assert line.found == assigns
        assert not backend._uplink.up
        began_s = now_s()
        assert [delta async for delta in backend.run(Job(2, (20, 21), SAMPLING, mode=mode))]
        assert now_s() - began_s < 0.1, "the next one at once"
        line.heard_s = now_s()
        assert backend._uplink.up, "it is there again"


@in_virtual_time
@pytest.mark.parametrize("begun", [False, True], ids=["before-the-request", "after-its-assignment"])
@pytest.mark.parametrize("mode", [None, "split"])
async def test_a_gateways_successor_is_waited_for_a_second(mode: str | None, begun: bool) -> None:
    """And not longer: then the device answers alone, the next request at once."""
    line, successor = Line(assigns=begun), Line(assigns=1)
    async with split_device(line) as backend:
        uplink = backend._uplink
        if not begun:
            await line.close()
        answer = asyncio.ensure_future(everything(backend.run(Job(1, (20, 21), SAMPLING, mode=mode))))
        await asyncio.sleep(0.1)
        if begun:
            assert line.found == 1
            line.lose("the gateway is replaced")
        assert not uplink.up
        await asyncio.sleep(0.5 * WAIT_S)
        assert not answer.done()
        uplink._connection = successor
        uplink._reached.set()
        await asyncio.sleep(0.1)
        assert successor.found == 1, "it is in mode split"
        successor.lose("this one, too")
        lost_s = now_s()
        assert {origin for delta in await answer for origin in delta.origins} == {Origin.DEVICE}
        assert now_s() - lost_s == pytest.approx(WAIT_S, abs=0.1)
        lost_s = now_s()
        assert await everything(backend.run(Job(2, (20, 21), SAMPLING, mode=mode)))
        assert now_s() - lost_s < 0.1


@in_virtual_time
async def test_what_needs_the_cloud_is_refused_where_it_is_silent() -> None:
    line = Line()
    async with split_device(line) as backend:
        line.heard_s = now_s()
        with pytest.raises(EngineStopped, match="the cloud at .* does not answer"):
            await anext(backend.run(Job(1, (20, 21), SAMPLING, mode="cloud")))
        assert now_s() == pytest.approx(WAIT_S, abs=0.1)


@in_virtual_time
async def test_silence_before_a_request_does_not_count_alone() -> None:
    """The cloud has a second to answer its pings, however long nothing had come before."""
    line = Line()
    async with split_device(line) as backend:
        line.heard_s = now_s()
        await asyncio.sleep(0.95 * WAIT_S)
        waiting = asyncio.ensure_future(anext(backend.run(Job(1, (20, 21), SAMPLING, mode="split"))))
        await asyncio.sleep(0.3)
        line.heard_s = None
        await asyncio.sleep(10.0)
        assert not waiting.done()
        waiting.cancel()


class Stranger(Line):
    """A connection to a cloud that does not know the device yet."""

    async def ask(self, method: str, body: bytes) -> bytes:
        raise NoSuchDevice("no device 'laptop' is registered")


@in_virtual_time
async def test_it_is_ready_when_it_answers_what_names_no_mode() -> None:
    """Also before the cloud knows the device, whose own model answers then, and which says that no cloud is there."""
    async with split_device(Stranger()) as backend:
        backend._uplink._reached.clear()
        async with httpx.AsyncClient(
            base_url="http://localhost", transport=httpx.ASGITransport(create_api(backend))
        ) as http:
            ready = await http.get("/readyz")
            assert (ready.status_code, ready.json()["status"], ready.json()["cloud"]) == (200, "ready", False)
            ask = {"model": backend.models()[0].id, "prompt": "x", "max_tokens": 2, "temperature": 0}
            reply = await http.post("/v1/completions", json=ask)
            assert reply.status_code == 200, reply.text
            assert reply.json()["tandem"]["stats"]["mode"] == "device"
            reply = await http.post("/v1/completions", json=ask | {"tandem": {"mode": "split"}})
            assert (reply.status_code, reply.json()["tandem"]["stats"]["mode"]) == (200, "device")
            await backend._device.close()
            assert (await http.get("/readyz")).status_code == 503
    assert now_s() < 0.1


@in_virtual_time
async def test_only_what_names_no_mode_is_kept_from_a_cloud_that_is_slow() -> None:
    """The cloud's gateway is alive."""
    async with split_device(Line()) as backend:
        deltas = [delta async for delta in backend.run(Job(1, (20, 21), SAMPLING))]
        assert {origin for delta in deltas for origin in delta.origins} == {Origin.DEVICE}
        assert now_s() == pytest.approx(SOON_S, abs=0.1)
        waiting = asyncio.ensure_future(anext(backend.run(Job(2, (20, 21), SAMPLING, mode="split"))))
        await asyncio.sleep(30.0)
        assert not waiting.done()
        waiting.cancel()


@in_virtual_time
async def test_the_rest_of_an_answer_is_the_devices_own_where_the_cloud_is_lost() -> None:
    line = Line(assigns=1)
    async with split_device(line) as backend:
        begun = RoutingRequest(lost=(MIDDLE.key,), sent=3)
        assert (await backend._router.assign(begun)).mode == "split", "another middle"
        line.reached_s = float("inf")
        made = await backend._router.assign(begun)
        assert (made.mode, made.endpoints["device"].device) == ("device", True)
        with pytest.raises(NoEndpoint):
            await backend._router.assign(replace(begun, lost=(made.endpoints["device"].key,)))


class Cloud(Line):
    """A connection to a cloud that has the whole model, and its middle."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._engines: dict[str, Engine] = {"verifier": parts.whole, "middle": parts.middle}

    async def ask(self, method: str, body: bytes) -> bytes:
        if method != ASSIGN:
            return b""
        mode = unpack(body, RoutingRequest).mode
        role, pool = ("middle", "middle") if mode == "split" else ("target", "verifier")
        split = self._engines[pool].info.split
        endpoint = EndpointInfo(pool, "10.0.0.1:1", pool, vocabulary=SPEAKS.vocabulary, split=split)
        return pack(AssignmentMessage.of(Assignment(mode or "split", {role: endpoint})))

    async def find(self, key: str) -> Engine:
        return self._engines[key.partition("@")[0]]


SCHEMA = {
    "type": "object",
    "properties": {"town": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "old": {"type": "boolean"}},
    "required": ["town", "old"],
    "additionalProperties": False,
}
FORMS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA}}},
    {
        "tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}],
        "tool_choice": "required",
    },
    {"extra_body": {"structured_outputs": {"regex": "[A-Z][a-z]{2,8}, [0-9]{1,3}"}}},
]


async def test_a_split_answer_has_the_form_asked_for(tmp_path: Path) -> None:
    """And is the whole model's under the same form: JSON of a schema, a call that has to be made, an expression."""
    memory = {"kv_blocks": 256, "block_size": 16, "token_budget": 512}
    parts = Parts.make(family.path("target"), 2, tmp_path, 0.0, memory, memory)
    async with (
        split_device(Cloud(parts), parts.outer) as backend,
        served(create_api(backend)) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        said: dict[str, list[Any]] = {"cloud": [], "split": []}
        for mode, form in product(said, FORMS):
            answer = await client.chat.completions.create(
                model="tandem",
                messages=[{"role": "user", "content": "Tell me about the town of Marworth."}],
                temperature=0,
                max_tokens=80,
                **form | {"extra_body": form.get("extra_body", {}) | {"tandem": {"mode": mode}}},
            )
            assert (answer.model_extra or {})["tandem"]["stats"]["mode"] == mode
            (choice,) = answer.choices
            calls = [call.function.arguments for call in choice.message.tool_calls or ()]
            said[mode].append((choice.message.content, calls, choice.finish_reason))
        assert said["split"] == said["cloud"]
        town, called, spelt = said["split"]
        assert json.loads(town[0]).keys() == json.loads(called[1][0]).keys() == {"town", "old"}
        assert re.fullmatch("[A-Z][a-z]{2,8}, [0-9]{1,3}", spelt[0])
        await backend.close()
    await parts.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("PATCH", "/v1/keys/key-1"),
        ("POST", "/v1/keys/key-1/rotate"),
        ("DELETE", "/v1/keys/key-1"),
        ("PATCH", "/v1/account"),
        ("GET", "/v1/usage"),
    ],
)
async def test_keys_and_terms_are_kept_in_the_cloud(backend: DeviceBackend, method: str, path: str) -> None:
    transport = httpx.ASGITransport(create_api(backend))
    async with httpx.AsyncClient(base_url="http://localhost", transport=transport) as http:
        reply = await http.request(method, path, json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "key_refused")
    assert "in the cloud" in reply.json()["error"]["message"]
