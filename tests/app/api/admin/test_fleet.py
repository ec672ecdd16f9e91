"""The fleet over HTTP: what is up, who works for whom, and events as that changes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tandem.app.api.admin import fleet
from tandem.deployments.access.keys import Role
from tandem.deployments.request.assignment import Unavailable
from tandem.deployments.request.under_way import UnderWay
from tests.app.api.null_backend import UP, NullBackend

WORK = UnderWay(7, "ada", "race", {"target": "verifier 1", "device": "pixel-1"}, 12, "device")


async def test_what_is_up_and_who_works_for_whom(http: httpx.AsyncClient, backend: NullBackend) -> None:
    backend.working = [WORK]
    found = (await http.get("/v1/fleet")).json()
    (verifier,) = found["pools"]["verifier"]
    assert (verifier["name"], verifier["sessions"], verifier["waiting"]) == ("verifier 1", 9, 2)
    assert (verifier["blocks_free"], verifier["blocks_total"]) == (24, 96)
    assert [device["name"] for device in found["devices"]] == ["pixel-1"]
    assert found["missing"] == ["pixel-2", "pixel-3"]
    assert found["requests"] == [
        {
            "request": 7,
            "account": "ada",
            "mode": "race",
            "endpoints": {"target": "verifier 1", "device": "pixel-1"},
            "tokens": 12,
            "origin": "device",
        }
    ]


async def test_for_operators_alone(http: httpx.AsyncClient, backend: NullBackend) -> None:
    await backend.treasury.make("ada", Role.OPERATOR, {})
    _, secret = await backend.treasury.make("bob", Role.USER, {})
    assert (await http.get("/v1/fleet")).status_code == 401
    headers = {"authorization": f"Bearer {secret}"}
    for query in ("", "?stream=true"):
        reply = await http.get(f"/v1/fleet{query}", headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "operator_only")


async def test_events_as_it_changes(
    http: httpx.AsyncClient, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "PERIOD_S", 0.001)
    async with http.stream("GET", "/v1/fleet?stream=true") as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = (json.loads(line[6:]) async for line in reply.aiter_lines() if line)
        first: dict[str, Any] = await anext(events)
        assert first["requests"] == []
        backend.working = [WORK]
        assert (await anext(events))["requests"][0]["tokens"] == 12
        backend.snapshot = replace(UP, pools={})
        assert (await anext(events))["pools"] == {}

        async def gone() -> Any:
            raise Unavailable("the router does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(backend, "fleet", gone)
            assert (await anext(events))["error"]["message"] == "the router does not answer"
        assert (await anext(events))["missing"] == ["pixel-2", "pixel-3"]


async def test_a_stream_without_news_says_so_and_ends(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "PERIOD_S", 0.001)
    monkeypatch.setattr(fleet, "IDLE_S", 0.01)
    monkeypatch.setattr(fleet, "LONGEST_S", 0.05)
    text = (await http.get("/v1/fleet?stream=true")).text
    assert text.count("data: ") == 1
    assert ": nothing new\n\n" in text


def test_a_large_fleet_is_told_less_often() -> None:
    assert fleet.pause_s(1000) == fleet.PERIOD_S
    assert fleet.pause_s(4 * fleet.BYTES_PER_S) == 4.0
