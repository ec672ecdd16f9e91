"""Accounts over HTTP without keys: one for each device, and the anonymous one."""

from __future__ import annotations

import pytest

from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used

ASK = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


async def test_a_request_is_on_its_devices_account(backend, http):
    await http.post("/v1/chat/completions", json=ASK | {"tandem": {"device": "pixel-1"}})
    await http.post("/v1/chat/completions", json=ASK)
    assert [job.account for job in backend.jobs] == ["device-pixel-1", "anonymous"]


async def test_budget_and_exchange_rate_are_settable_live(http):
    phone = {"device": "pixel-1"}
    set_ = await http.patch("/v1/account", json={"budget": 0.25, "exchange_rate": 2e-7}, params=phone)
    got = await http.get("/v1/account", params=phone)
    assert set_.json() == got.json()
    assert (got.json()["account"], got.json()["budget"], got.json()["exchange_rate"]) == (
        "device-pixel-1",
        0.25,
        2e-7,
    )
    other = (await http.get("/v1/account")).json()
    assert (other["account"], other["budget"]) == ("anonymous", 0.5)
    await http.patch("/v1/account", json={"exchange_rate": 1.0}, params=phone)
    assert (await http.get("/v1/account", params=phone)).json()["budget"] == 0.25, "what is left out stays"


async def test_usage(backend, http):
    account = backend.accounts.of("anonymous")
    account.charge(Charge("anonymous", "", Bill(1, Used(10, 20, 0, 0), 0.5, 0.25)))
    account.charge(Charge("anonymous", "pixel-1", Bill(2, Used(1, 2, 3, 4), 0.0, 0.0, 6.0, 0.125)))
    shown = (await http.get("/v1/account")).json()
    assert (shown["requests"], shown["server_tokens_in"], shown["device_tokens_out"]) == (3, 11, 4)
    assert (shown["server_usd"], shown["server_usd_in"], shown["server_usd_out"]) == (0.75, 0.5, 0.25)
    assert shown["devices"]["pixel-1"]["device_joules"] == 6.0
    assert set(shown["devices"]) == {"pixel-1"}


async def test_reading_opens_no_account(backend, http):
    for number in range(20):
        await http.get("/v1/account", params={"device": f"invented-{number}"})
    assert not backend.accounts._accounts


@pytest.mark.parametrize(
    ("wrong", "param"),
    [({"budget": 1.5}, "budget"), ({"exchange_rate": -1}, "exchange_rate"), ({"budgets": 0.5}, "budgets")],
)
async def test_an_invalid_change_is_refused(http, wrong, param):
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


async def test_a_request_may_set_budget_and_exchange_rate(backend, http):
    asked = {"mode": "race", "device": ["pixel-1"], "budget": 0.1, "exchange_rate": 3e-6}
    reply = await http.post("/v1/chat/completions", json=ASK | {"tandem": asked})
    assert reply.status_code == 200
    (job,) = backend.jobs
    assert (job.mode, job.device, job.budget, job.exchange_rate) == ("race", "pixel-1", 0.1, 3e-6)


@pytest.mark.parametrize(
    "wrong", [{"budget": 2}, {"budget": "all"}, {"exchange_rate": -1}, {"device": []}, {"device": [""]}]
)
async def test_invalid_wishes_of_a_request(backend, http, wrong):
    reply = await http.post("/v1/chat/completions", json=ASK | {"tandem": wrong})
    assert reply.status_code == 400
    assert not backend.jobs
