"""Operators' orders over HTTP: who may give them, what is refused, and what is told of them."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from tandem.deployments.access.keys import Role
from tests.app.api.null_backend import UP, NullBackend

DRAINED = {"drained": True}


@pytest.fixture
def two(backend: NullBackend) -> str:
    """Have two verifiers; return the first one's name, as a path has it."""
    (one,) = UP.pools["verifier"]
    backend.snapshot = replace(UP, pools={"verifier": (one, replace(one, name="verifier 2"))})
    return "verifier%201"


async def test_a_replica_is_drained_and_takes_requests_again(http: httpx.AsyncClient, two: str) -> None:
    reply = await http.patch(f"/v1/fleet/replicas/{two}", json=DRAINED)
    assert [each["name"] for each in reply.json()["drained"]["verifier"]] == ["verifier 1"]
    assert (await http.get("/v1/fleet")).json()["drained"] == reply.json()["drained"]
    reply = await http.patch(f"/v1/fleet/replicas/{two}", json={"drained": False})
    assert reply.json() == {"drained": {}, "stopped": [], "links": {}}


async def test_a_device_is_stopped_and_its_link_changed(http: httpx.AsyncClient) -> None:
    path = "/v1/fleet/devices/pixel-1"
    assert (await http.patch(path, json={"stopped": True})).json()["stopped"] == ["pixel-1"]
    told = (await http.patch(path, json={"link": {"rtt_ms": 80, "loss": 0.1, "up_mbit_per_s": 8}})).json()
    link = told["links"]["pixel-1"]
    assert (link["cut"], told["stopped"]) == (False, ["pixel-1"])
    assert link["profile"]["rtt_s"] == 0.08
    assert link["profile"]["loss"] == 0.1
    assert link["profile"]["up_bytes_per_s"] == 1e6
    told = (await http.patch(path, json={"stopped": False, "link": {"cut": True}})).json()
    assert told == {"drained": {}, "stopped": [], "links": {"pixel-1": {"cut": True, "profile": None}}}
    assert (await http.patch(path, json={"link": None})).json()["links"] == {}


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("replicas/verifier%201", DRAINED, 409, "order_refused"),  # the last one
        ("replicas/verifier%209", DRAINED, 404, "endpoint_not_found"),
        ("replicas/verifier%201", {}, 400, "missing_required_parameter"),
        ("devices/nokia", {"stopped": True}, 404, "endpoint_not_found"),
        ("devices/laptop", {"link": {"cut": True}}, 409, "order_refused"),  # its link is real
        ("devices/pixel-1", {"link": {"loss": 1}}, 400, "invalid_value"),
        ("devices/pixel-1", {"link": {"rtt_ms": 1, "jitter_ms": 9}}, 400, "invalid_value"),
        ("devices/pixel-1", {"halted": True}, 400, "unsupported_parameter"),
    ],
)
async def test_what_is_refused(
    http: httpx.AsyncClient, path: str, body: dict[str, object], status: int, code: str
) -> None:
    reply = await http.patch(f"/v1/fleet/{path}", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


async def test_for_operators_alone(http: httpx.AsyncClient, backend: NullBackend) -> None:
    await backend.treasury.make("ada", Role.OPERATOR, {})
    _, secret = await backend.treasury.make("bob", Role.USER, {})
    for path in ("replicas/verifier%201", "devices/pixel-1"):
        assert (await http.patch(f"/v1/fleet/{path}", json={})).status_code == 401
        reply = await http.patch(f"/v1/fleet/{path}", json={}, headers={"authorization": f"Bearer {secret}"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "operator_only")
