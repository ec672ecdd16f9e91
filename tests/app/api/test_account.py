"""Accounts over HTTP: whose they are, what may be set, and that keys are never shown."""

from __future__ import annotations

import pytest

ASK = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


async def test_a_request_is_its_keys_or_its_devices(backend, http):
    await http.post("/v1/chat/completions", json=ASK, headers={"Authorization": "Bearer sesame"})
    await http.post("/v1/chat/completions", json=ASK | {"tandem": {"device": "pixel-1"}})
    await http.post("/v1/chat/completions", json=ASK)
    keys = [job.account for job in backend.jobs]
    assert keys[0].startswith("key-")
    assert "sesame" not in keys[0]
    assert keys[1:] == ["device-pixel-1", "anonymous"]


async def test_budget_and_exchange_rate_are_settable_live(http):
    headers = {"Authorization": "Bearer sesame"}
    set_ = await http.patch("/v1/account", json={"budget": 0.25, "exchange_rate": 2e-7}, headers=headers)
    got = await http.get("/v1/account", headers=headers)
    assert set_.json() == got.json()
    assert (got.json()["budget"], got.json()["exchange_rate"]) == (0.25, 2e-7)
    other = (await http.get("/v1/account", params={"device": "pixel-1"})).json()
    assert (other["account"], other["budget"]) == ("device-pixel-1", 0.5)
    await http.patch("/v1/account", json={"exchange_rate": 1.0}, headers=headers)
    assert (await http.get("/v1/account", headers=headers)).json()["budget"] == 0.25, "what is left out stays"
    assert "sesame" not in got.text


@pytest.mark.parametrize(
    ("wrong", "param"),
    [({"budget": 1.5}, "budget"), ({"exchange_rate": -1}, "exchange_rate"), ({"budgets": 0.5}, "budgets")],
)
async def test_nonsense_is_refused_and_changes_nothing(http, wrong, param):
    reply = await http.patch("/v1/account", json={"budget": 0.3} | wrong)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert (await http.get("/v1/account")).json()["budget"] == 0.5


@pytest.mark.parametrize("device", ["", "x" * 129])
async def test_a_device_is_named_as_in_a_request(http, device):
    for reply in (
        await http.get("/v1/account", params={"device": device}),
        await http.patch("/v1/account", params={"device": device}, json={"budget": 0.3}),
    ):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "device")


async def test_a_request_may_have_its_own(backend, http):
    asked = {"mode": "race", "device": ["pixel-1"], "budget": 0.1, "exchange_rate": 3e-6}
    reply = await http.post("/v1/chat/completions", json=ASK | {"tandem": asked})
    assert reply.status_code == 200
    (job,) = backend.jobs
    assert (job.mode, job.device, job.budget, job.exchange_rate) == ("race", "pixel-1", 0.1, 3e-6)


@pytest.mark.parametrize(
    "wrong", [{"budget": 2}, {"budget": "all"}, {"exchange_rate": -1}, {"device": []}, {"device": [""]}]
)
async def test_a_requests_own_are_checked(backend, http, wrong):
    reply = await http.post("/v1/chat/completions", json=ASK | {"tandem": wrong})
    assert reply.status_code == 400
    assert not backend.jobs
