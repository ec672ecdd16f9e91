"""Access: from this machine without keys; then by key from anywhere, within the key's terms."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tandem.app.api.routes import create_api
from tandem.deployments.access.keys import Caller
from tandem.deployments.request.assignment import Unavailable
from tandem.policies.routing.objectives import OBJECTIVES, Leaves
from tests.app.api.null_backend import NullBackend, times

ASK: dict[str, Any] = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
CHAT = "/v1/chat/completions"
GUARDED = ("/v1/models", "/v1/models/null", "/v1/devices", "/v1/account", "/v1/usage", "/v1/keys", "/metrics")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def from_afar(api: FastAPI, base_url: str = "http://localhost") -> httpx.AsyncClient:
    """A client on another machine."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(api, client=("10.0.0.7", 1234)), base_url=base_url)


@pytest.fixture
async def operator(http: httpx.AsyncClient) -> dict[str, str]:
    """Header of the first key, an operator's."""
    made = await http.post("/v1/keys", json={"name": "boss", "role": "operator"})
    assert made.status_code == 201
    return bearer(made.json()["secret"])


@pytest.mark.parametrize("path", GUARDED)
async def test_where_nobody_knows_keys_nobody_is_let_in(
    backend: NullBackend,
    http: httpx.AsyncClient,
    operator: dict[str, str],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(hashed: str | None) -> Caller | None:
        raise Unavailable("the access does not answer")

    monkeypatch.setattr(backend, "caller", away)
    for headers in ({}, operator):
        assert (await http.get(path, headers=headers)).status_code == 503
        assert (await http.post(CHAT, json=ASK, headers=headers)).status_code == 503
    assert not backend.jobs


async def user(http: httpx.AsyncClient, operator: dict[str, str], **terms: Any) -> tuple[str, dict[str, str]]:
    """Make a user's key; return (its id, its header)."""
    made = await http.post("/v1/keys", json={"name": "app", **terms}, headers=operator)
    assert made.status_code == 201, made.text
    return made.json()["id"], bearer(made.json()["secret"])


def error(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


# -- without keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "[::1]:8000", "127.0.0.1:1"])
async def test_this_machine_is_answered_under_its_names(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.post(CHAT, json=ASK, headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1"])
async def test_other_names_of_this_machine_are_refused(
    http: httpx.AsyncClient, backend: NullBackend, host: str
) -> None:
    """DNS rebinding: a web page's name may resolve to this machine."""
    assert error(await http.post(CHAT, json=ASK, headers={"Host": host})) == (403, "host_not_allowed")
    assert not backend.jobs


async def test_another_machine_is_refused(backend: NullBackend) -> None:
    async with from_afar(create_api(backend, backend)) as client:
        for path in ("/v1/models", "/v1/devices", "/v1/account", "/v1/keys"):
            assert error(await client.get(path)) == (403, "local_only")
        assert error(await client.post(CHAT, json=ASK)) == (403, "local_only")
        assert (await client.get("/healthz")).status_code == 200
    assert not backend.jobs


async def test_a_proxy_must_name_the_client(http: httpx.AsyncClient, backend: NullBackend) -> None:
    backend.behind_proxy = True
    assert error(await http.post(CHAT, json=ASK)) == (403, "local_only")
    assert (await http.post(CHAT, json=ASK, headers={"X-Forwarded-For": "127.0.0.1"})).status_code == 200


async def test_an_invented_key_is_anonymous(http: httpx.AsyncClient, backend: NullBackend) -> None:
    for number in range(20):
        await http.post(CHAT, json=ASK, headers=bearer(f"invented-{number}"))
    assert {job.account for job in backend.jobs} == {"anonymous"}


# -- with keys ------------------------------------------------------------------------------------------


async def test_every_request_needs_a_key(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    for headers in ({}, bearer("invented"), {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
        for path in GUARDED:
            assert error(await http.get(path, headers=headers)) == (401, "invalid_api_key")
        refused = await http.post(CHAT, json=ASK, headers=headers)
        assert error(refused) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
    assert not backend.jobs
    assert (await http.get("/healthz")).status_code == 200
    assert (await http.get("/readyz")).status_code == 200
    assert (await http.post(CHAT, json=ASK, headers=operator)).status_code == 200


async def test_a_key_is_accepted_from_anywhere(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    async with from_afar(create_api(backend, backend), "http://tandem.example") as client:
        assert (await client.get("/v1/models", headers=operator)).status_code == 200


async def test_a_key_pays_whatever_device_it_names(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    id, mine = await user(http, operator)
    await http.post(CHAT, json=ASK | {"tandem": {"device": "pixel-1"}}, headers=mine)
    assert [job.account for job in backend.jobs] == [id]


async def test_only_operators_manage_keys_and_terms(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    id, mine = await user(http, operator, budget=0.25)
    refused = [
        await http.get("/v1/keys", headers=mine),
        await http.post("/v1/keys", json={"name": "more"}, headers=mine),
        await http.patch(f"/v1/keys/{id}", json={"budget": 1.0}, headers=mine),
        await http.post(f"/v1/keys/{id}/rotate", json={}, headers=mine),
        await http.delete(f"/v1/keys/{id}", headers=mine),
        await http.patch("/v1/account", json={"budget": 1.0}, headers=mine),
        await http.get("/v1/account", params={"account": "anonymous"}, headers=mine),
        await http.get("/metrics", headers=mine),
    ]
    assert {error(reply) for reply in refused} == {(403, "operator_only")}
    own = (await http.get("/v1/account", headers=mine)).json()
    assert (own["account"], own["budget"]) == (id, 0.25)
    theirs = (await http.get("/v1/account", params={"account": id}, headers=operator)).json()
    assert theirs == own


async def test_keys_are_listed_without_their_secrets(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    _, mine = await user(http, operator, requests_per_minute=5, modes=["cloud"])
    reply = await http.get("/v1/keys", headers=operator)
    assert [key["name"] for key in reply.json()["data"]] == ["boss", "app"]
    assert reply.json()["data"][1]["terms"]["modes"] == ["cloud"]
    for headers in (operator, mine):
        assert headers["Authorization"].split()[1] not in reply.text


async def test_a_revoked_or_rotated_key_is_refused(http: httpx.AsyncClient, operator: dict[str, str]) -> None:
    id, mine = await user(http, operator)
    rotated = await http.post(f"/v1/keys/{id}/rotate", json={}, headers=operator)
    new = bearer(rotated.json()["secret"])
    assert error(await http.get("/v1/models", headers=mine)) == (401, "invalid_api_key")
    assert (await http.get("/v1/models", headers=new)).status_code == 200
    assert (await http.delete(f"/v1/keys/{id}", headers=operator)).status_code == 204
    assert error(await http.get("/v1/models", headers=new)) == (401, "invalid_api_key")
    assert error(await http.delete(f"/v1/keys/{id}", headers=operator)) == (404, "key_not_found")


async def test_the_last_operators_key_stays(http: httpx.AsyncClient) -> None:
    assert error(await http.post("/v1/keys", json={"name": "app"})) == (409, "key_refused")
    made = (await http.post("/v1/keys", json={"name": "boss", "role": "operator"})).json()
    headers = bearer(made["secret"])
    await user(http, headers)
    assert error(await http.delete(f"/v1/keys/{made['id']}", headers=headers)) == (409, "key_refused")
    demoted = await http.patch(f"/v1/keys/{made['id']}", json={"role": "user"}, headers=headers)
    assert error(demoted) == (409, "key_refused")


# -- devices' keys --------------------------------------------------------------------------------------


async def test_a_devices_key_is_refused_everywhere(http: httpx.AsyncClient, backend: NullBackend) -> None:
    made = await http.post("/v1/keys", json={"name": "pixel-1", "role": "device"})
    assert made.status_code == 201, made.text
    assert made.json()["terms"]["devices"] == ["pixel-1"]
    device = bearer(made.json()["secret"])
    boss = await http.post("/v1/keys", json={"name": "boss", "role": "operator"})
    assert boss.status_code == 201, "a device's key as the first locks no operator out"
    id = made.json()["id"]
    replies = [
        *[await http.get(path, headers=device) for path in GUARDED],
        await http.post(CHAT, json=ASK, headers=device),
        await http.post("/v1/completions", json={"model": "null", "prompt": "a"}, headers=device),
        await http.post("/v1/keys", json={"name": "more"}, headers=device),
        await http.patch("/v1/account", json={"budget": 1.0}, headers=device),
        await http.delete(f"/v1/keys/{id}", headers=device),
    ]
    assert {error(reply) for reply in replies} == {(403, "device_key")}
    assert not backend.jobs
    said = replies[0].json()["error"]
    assert said["type"] == "permission_error"
    assert said["message"] == "this key is a device's: it opens the gateway, not the API"
    listed = await http.get("/v1/keys", headers=bearer(boss.json()["secret"]))
    assert [key["role"] for key in listed.json()["data"]] == ["device", "operator"]


async def test_devices_keys_alone_leave_this_machine_without_a_key(backend: NullBackend) -> None:
    api = create_api(backend, backend)
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as here,
        from_afar(api) as afar,
    ):
        made = (await here.post("/v1/keys", json={"name": "pixel-1", "role": "device"})).json()
        assert (await here.get("/v1/models")).status_code == 200
        assert error(await afar.get("/v1/models")) == (403, "local_only")
        for client in (here, afar):
            refused = await client.get("/v1/models", headers=bearer(made["secret"]))
            assert error(refused) == (403, "device_key")
        assert error(await here.post("/v1/keys", json={"name": "app"})) == (409, "key_refused")
        assert (await here.delete(f"/v1/keys/{made['id']}")).status_code == 204


async def test_a_devices_key_keeps_name_role_and_device(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    device, _ = await user(http, operator, name="pixel-1", role="device")
    other, _ = await user(http, operator)
    for id, change in (
        (device, {"role": "user"}),
        (device, {"name": "pixel-2"}),
        (device, {"devices": ["pixel-2"]}),
        (other, {"role": "device"}),
    ):
        refused = await http.patch(f"/v1/keys/{id}", json=change, headers=operator)
        assert error(refused) == (409, "key_refused"), change
    for wrong in ({"name": "pixel-1"}, {"name": "my phone"}, {"name": "any"}):
        refused = await http.post("/v1/keys", json=wrong | {"role": "device"}, headers=operator)
        assert error(refused) == (409, "key_refused"), wrong
    changed = await http.patch(f"/v1/keys/{device}", json={"budget": 0.1, "concurrent": 2}, headers=operator)
    assert (changed.json()["name"], changed.json()["terms"]["concurrent"]) == ("pixel-1", 2)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"name": ""}, "name"),
        ({"role": "king"}, "role"),
        ({"budget": 2}, "budget"),
        ({"requests_per_minute": -1}, "requests_per_minute"),
        ({"modes": ["warp"]}, "modes"),
        ({"devices": [""]}, "devices[0]"),
        ({"limit": 5}, "limit"),
    ],
)
async def test_an_invalid_form_makes_no_key(
    http: httpx.AsyncClient, wrong: dict[str, Any], param: str
) -> None:
    reply = await http.post("/v1/keys", json={"name": "boss", "role": "operator"} | wrong)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert (await http.get("/v1/keys")).json()["data"] == []


# -- terms ----------------------------------------------------------------------------------------------


async def test_a_request_cannot_raise_its_budget(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    _, mine = await user(http, operator, budget=0.25, exchange_rate=1e-6)
    for asked in ({}, {"budget": 0.9, "exchange_rate": 1.0}, {"budget": 0.1, "exchange_rate": 1e-7}):
        await http.post(CHAT, json=ASK | {"tandem": {"mode": "race", **asked}}, headers=mine)
    assert [(job.budget, job.exchange_rate) for job in backend.jobs] == [
        (0.25, 1e-6),
        (0.25, 1e-6),
        (0.1, 1e-7),
    ]


async def test_a_request_cannot_loosen_its_keys_objective(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    own = {"prefer": "cheap", "usd": 0.01, "privacy": "hidden_states"}
    id, mine = await user(http, operator, objective=own)
    for asked in (None, "fast", {"privacy": "text", "usd": 0.02}, {"privacy": "nothing", "usd": 0.005}):
        body = ASK | {"tandem": {} if asked is None else {"objective": asked}}
        await http.post(CHAT, json=body, headers=mine)
    found = [job.objective for job in backend.jobs]
    assert found[0] == replace(OBJECTIVES["cheap"], usd=0.01, privacy=Leaves.HIDDEN_STATES)
    assert [(each.second_usd, each.usd, each.privacy) for each in found[1:]] == [
        (OBJECTIVES["fast"].second_usd, 0.01, Leaves.HIDDEN_STATES),
        (OBJECTIVES["balanced"].second_usd, 0.01, Leaves.HIDDEN_STATES),
        (OBJECTIVES["balanced"].second_usd, 0.005, Leaves.NOTHING),
    ]
    shown = (await http.get("/v1/account", headers=mine)).json()["terms"]["objective"]
    assert (shown["usd"], shown["ttft_s"], shown["privacy"]) == (0.01, None, "hidden_states")
    await http.patch(f"/v1/keys/{id}", json={"objective": ""}, headers=operator)
    await http.post(CHAT, json=ASK, headers=mine)
    assert backend.jobs[-1].objective is None


async def test_modes_and_devices(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    _, mine = await user(http, operator, modes=["cloud", "device"], devices=["pixel-1"])
    for asked, code in (
        ({"mode": "race"}, "mode_not_allowed"),
        ({"mode": "device", "device": "pixel-2"}, "device_not_allowed"),
        ({"mode": "device", "device": ["pixel-1", "pixel-2"]}, "device_not_allowed"),
    ):
        assert error(await http.post(CHAT, json=ASK | {"tandem": asked}, headers=mine)) == (403, code)
    assert not backend.jobs
    reply = await http.post(
        CHAT, json=ASK | {"tandem": {"mode": "device", "device": "pixel-1"}}, headers=mine
    )
    assert reply.status_code == 200
    assert (backend.jobs[0].modes, backend.jobs[0].devices) == (("cloud", "device"), ("pixel-1",))
    _, other = await user(http, operator, devices=["pixel-9"])
    assert (await http.get("/v1/devices", headers=other)).json()["data"] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_rate_limits_and_their_headers(
    http: httpx.AsyncClient, operator: dict[str, str], stream: bool
) -> None:
    _, mine = await user(http, operator, requests_per_minute=2, tokens_per_minute=10_000)
    first = await http.post(CHAT, json=ASK | {"stream": stream}, headers=mine)
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 10_000
    await http.post(CHAT, json=ASK, headers=mine)
    third = await http.post(CHAT, json=ASK | {"stream": stream}, headers=mine)
    assert error(third) == (429, "rate_limit_exceeded")
    assert 1 <= int(third.headers["retry-after"]) <= 30
    unlimited = await http.post(CHAT, json=ASK, headers=operator)
    assert not [name for name in unlimited.headers if name.startswith("x-ratelimit")]


async def test_limit_of_concurrent_answers(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    _, mine = await user(http, operator, concurrent=1)
    backend.hold_after = 1
    running = asyncio.create_task(http.post(CHAT, json=ASK, headers=mine))
    await times(1, backend.held)
    assert error(await http.post(CHAT, json=ASK, headers=mine)) == (429, "rate_limit_exceeded")
    backend.go.set()
    assert (await running).status_code == 200
    assert (await http.post(CHAT, json=ASK, headers=mine)).status_code == 200


async def test_a_client_that_leaves_frees_its_place(
    http: httpx.AsyncClient, backend: NullBackend, operator: dict[str, str]
) -> None:
    _, mine = await user(http, operator, concurrent=1)
    backend.hold_after = 1
    running = asyncio.create_task(http.post(CHAT, json=ASK, headers=mine))
    await times(1, backend.held)
    running.cancel()
    await times(1, backend.closed)
    backend.go.set()
    assert (await http.post(CHAT, json=ASK, headers=mine)).status_code == 200


async def test_too_many_answers_to_one_request(http: httpx.AsyncClient, backend: NullBackend) -> None:
    most = backend.api.sessions
    assert (await http.post(CHAT, json=ASK | {"n": most})).status_code == 200
    for path, body in (
        (CHAT, ASK | {"n": most + 1}),
        ("/v1/completions", {"model": "null", "prompt": ["a"] * (most // 2 + 1), "n": 2, "max_tokens": 1}),
    ):
        reply = await http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")


# -- attacks by web pages ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_only_json_is_accepted(http: httpx.AsyncClient, backend: NullBackend, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    for path in (CHAT, "/v1/completions", "/v1/keys"):
        reply = await http.post(path, content=b'{"model": "null", "messages": []}', headers=headers)
        assert error(reply) == (415, "unsupported_media_type")
    assert not backend.jobs


async def test_json_with_a_charset_is_json(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await http.post(CHAT, content=json.dumps(ASK), headers=headers)).status_code == 200


async def test_web_pages_need_a_listed_origin(backend: NullBackend) -> None:
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    for origins, allowed in (((), None), (("https://page.example",), "https://page.example")):
        backend.api = backend.api.model_copy(update={"cors_origins": origins})
        transport = httpx.ASGITransport(create_api(backend, backend))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.options(CHAT, headers=asked)
            assert reply.headers.get("access-control-allow-origin") == allowed
