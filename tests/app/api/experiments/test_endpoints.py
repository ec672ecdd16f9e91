"""Experiments over HTTP: what there is, what is refused at the edge, and one that runs in a process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from tandem.app.api.experiments import endpoints, process
from tandem.app.api.experiments.catalogue import experiments
from tandem.app.api.experiments.endpoints import ExperimentForm
from tandem.app.api.experiments.process import simulated
from tandem.deployments.access.keys import Role
from tandem.simulator.runs.sweep import grid
from tests.app.api.null_backend import NullBackend

PATH = "/v1/experiments"
SMALL = {"experiment": "laptops", "settings": {"workload.count": 2}, "vary": {"mode": ["cloud", "device"]}}


async def test_what_there_is(http: httpx.AsyncClient) -> None:
    found = {each["name"]: each for each in (await http.get(PATH)).json()["data"]}
    assert set(found) == {"laptops", "dsd", "hat", "tokenflow", "disco", "pice"}
    settings = {each["key"]: each for each in found["laptops"]["settings"]}
    assert settings["mode"]["default"] == "speculative"
    assert settings["workload.count"]["default"] == 60
    assert settings["devices.0.link.loss"]["default"] == 0
    assert found["dsd"]["vary"]["window.name"] == ["static", "awc"]


@pytest.mark.parametrize("name", experiments())
def test_each_can_be_simulated_with_all_that_can_be_moved(name: str) -> None:
    found = experiments()[name]
    for setting in found.settings:
        values = setting.choices or (setting.least, setting.most)
        for value in values:
            order = ExperimentForm(experiment=name, settings={setting.key: value}).order()  # type: ignore[dict-item]
            assert grid(order["config"], order["vary"], "experiment", order["fixed"])


@pytest.mark.parametrize(
    ("form", "status", "param"),
    [
        ({"experiment": "warp"}, 404, "experiment"),
        (
            {"experiment": "laptops", "settings": {"workload.path": "/etc/passwd"}},
            400,
            "settings.workload.path",
        ),
        ({"experiment": "laptops", "settings": {"workload.count": 1e9}}, 400, "settings.workload.count"),
        ({"experiment": "laptops", "settings": {"mode": "warp"}}, 400, "settings.mode"),
        ({"experiment": "dsd", "vary": {"seed": [1]}}, 400, "vary.seed"),
        ({"experiment": "dsd", "vary": {"window.name": ["mine:Mine"]}}, 400, "vary.window.name"),
        ({"experiment": "dsd", "vary": {"devices.0.link.rtt_ms": [*range(1, 30)]}}, 400, "vary"),
        ({"experiment": "laptops", "steps": 3}, 400, "steps"),
    ],
)
async def test_what_is_refused_at_the_edge(
    http: httpx.AsyncClient, form: dict[str, Any], status: int, param: str
) -> None:
    reply = await http.post(PATH, json=form)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


async def test_for_operators_alone(http: httpx.AsyncClient, backend: NullBackend) -> None:
    await backend.treasury.make("ada", Role.OPERATOR, {})
    _, secret = await backend.treasury.make("bob", Role.USER, {})
    headers = {"authorization": f"Bearer {secret}"}
    assert (await http.get(PATH, headers=headers)).json()["error"]["code"] == "operator_only"
    assert (await http.post(PATH, json=SMALL, headers=headers)).status_code == 403
    assert (await http.post(PATH, json=SMALL)).status_code == 401


async def test_one_at_a_time_and_it_ends_with_its_client(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = asyncio.Event()

    async def endless(order: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"type": "begun", "total": 1, "points": 1}
            await asyncio.Event().wait()
        finally:
            closed.set()

    monkeypatch.setattr(endpoints, "simulated", endless)
    async with http.stream("POST", PATH, json=SMALL) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        refused = await http.post(PATH, json=SMALL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
    async with asyncio.timeout(10):
        await closed.wait()
    async with http.stream("POST", PATH, json=SMALL) as reply:
        assert reply.status_code == 200


async def test_what_cannot_be_simulated_is_refused_before_the_stream(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refusing(order: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        yield {"type": "refused", "message": "closed arrivals need users"}

    monkeypatch.setattr(endpoints, "simulated", refusing)
    for _ in range(2):  # it leaves its place
        reply = await http.post(PATH, json=SMALL)
        assert (reply.status_code, reply.json()["error"]["message"]) == (400, "closed arrivals need users")


@pytest.mark.slow
async def test_a_sweep_runs_in_a_process_of_its_own(http: httpx.AsyncClient) -> None:
    async with http.stream("POST", PATH, json=SMALL, timeout=60) as reply:
        events = [json.loads(line[6:]) async for line in reply.aiter_lines() if line]
    assert events[0] == {"type": "begun", "total": 4, "points": 2}
    assert events[-1] == {"type": "done"}
    points = [event for event in events if event["type"] == "point"]
    assert [point["settings"] for point in points] == [{"mode": "cloud"}, {"mode": "device"}]
    for point in points:
        assert point["summary"]["requests"] == 2
        assert len(point["curves"]["ttft_s"]) == 41
        assert point["curves"]["ttft_s"] == sorted(point["curves"]["ttft_s"])


@pytest.mark.slow
async def test_limits_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    config = experiments()["laptops"].config
    large = {"config": config, "fixed": ["workload.count=100000"], "vary": []}
    monkeypatch.setattr(process, "WITHIN_S", 4.0)
    events = [event async for event in simulated(large)]
    assert events[-1]["type"] == "failed"
    assert "longer than 4 s" in events[-1]["message"]
    wrong = {"config": config, "fixed": ["workload.count=-1"], "vary": []}
    monkeypatch.setattr(process, "WITHIN_S", 60.0)
    (refused,) = [event async for event in simulated(wrong)]
    assert refused["type"] == "refused"
    assert "workload.count" in refused["message"]
    broken = {"config": config, "unknown": []}
    (failed,) = [event async for event in simulated(broken)]
    assert failed["type"] == "failed"
