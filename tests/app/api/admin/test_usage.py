"""Usage over HTTP: who may see whose, what is kept apart, and dollars that end."""

from __future__ import annotations

import csv
import io

import pytest

from tandem.deployments.access.keys import Role
from tandem.deployments.access.store import BillBatch
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used


def book(backend, *charges: Charge) -> None:
    backend.treasury.charge(BillBatch("test", 1, charges))


def charge(account: str, day: str, mode: str, usd: float, device: str = "") -> Charge:
    return Charge(account, device, Bill(1, Used(10, 20, 0, 0), 0.0, usd), mode, "null", day)


@pytest.fixture
async def booked(backend) -> None:
    book(
        backend,
        charge("anonymous", "2026-11-24", "cloud", 1.0),
        charge("anonymous", "2026-11-25", "cloud", 2.0),
        charge("anonymous", "2026-11-25", "race", 4.0, "pixel-1"),
        charge("device-pixel-1", "2026-11-25", "race", 8.0, "pixel-1"),
    )


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ({}, [("anonymous", "2026-11-24", "cloud", 1.0), ("anonymous", "2026-11-25", "cloud", 2.0),
              ("anonymous", "2026-11-25", "race", 4.0), ("device-pixel-1", "2026-11-25", "race", 8.0)]),
        ({"by": "day"}, [("2026-11-24", 1.0), ("2026-11-25", 14.0)]),
        ({"by": ["mode", "device", "mode"]}, [("cloud", "", 3.0), ("race", "pixel-1", 12.0)]),
        ({"by": "model", "account": "anonymous", "start": "2026-11-25"}, [("null", 6.0)]),
        ({"by": "day", "end": "2026-11-24"}, [("2026-11-24", 1.0)]),
        ({"account": "nobody"}, []),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("booked")
async def test_sums(http, asked, rows):
    reply = await http.get("/v1/usage", params=asked)
    assert reply.status_code == 200, reply.text
    assert reply.json()["object"] == "list"
    asked_for = {"by": asked.get("by", ["account", "day", "mode"])}["by"]
    by = list(dict.fromkeys([asked_for] if isinstance(asked_for, str) else asked_for))
    found = [(*(row[group] for group in by), row["server_usd"]) for row in reply.json()["data"]]
    assert found == rows
    for row in reply.json()["data"]:
        assert row["server_tokens_out"] == 20 * row["requests"]


@pytest.mark.usefixtures("booked")
async def test_a_spreadsheet(http):
    reply = await http.get("/v1/usage", params={"format": "csv", "by": ["day", "mode"]})
    assert reply.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(reply.text)))
    assert [(row["day"], row["mode"], float(row["server_usd_out"])) for row in rows] == [
        ("2026-11-24", "cloud", 1.0),
        ("2026-11-25", "cloud", 2.0),
        ("2026-11-25", "race", 12.0),
    ]


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"by": "moon"}, "by[0]"),
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-11-25", "end": "2026-11-24"}, "end"),
        ({"format": "xml"}, "format"),
    ],
)
async def test_an_invalid_question_is_refused(http, asked, param):
    reply = await http.get("/v1/usage", params=asked)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_a_user_sees_its_own_alone(backend, http):
    _, operator = await backend.make_key("ada", Role.OPERATOR, {})
    key, user = await backend.make_key("app", Role.USER, {})
    book(backend, charge(key.id, "2026-11-25", "cloud", 1.0), charge("anonymous", "2026-11-25", "cloud", 2.0))

    async def seen(secret: str, **params: str):
        bearer = {"authorization": f"Bearer {secret}"}
        return await http.get("/v1/usage", params=params, headers=bearer)

    assert [row["account"] for row in (await seen(user)).json()["data"]] == [key.id]
    assert [row["account"] for row in (await seen(user, account=key.id)).json()["data"]] == [key.id]
    refused = await seen(user, account="anonymous")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operator_only")
    assert {row["account"] for row in (await seen(operator)).json()["data"]} == {key.id, "anonymous"}
    assert (await http.get("/v1/usage")).status_code == 401


async def test_dollars_end(backend, http):
    """A key's dollars, as operators give them, see them, and as OpenAI's clients read that they are spent."""
    _, operator = await backend.make_key("ada", Role.OPERATOR, {})
    admin = {"authorization": f"Bearer {operator}"}
    made = await http.post("/v1/keys", json={"name": "app", "usd": 2.0, "per": "day"}, headers=admin)
    assert (made.json()["terms"]["usd"], made.json()["terms"]["per"]) == (2.0, "day")
    user = {"authorization": f"Bearer {made.json()['secret']}"}
    ask = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert (await http.post("/v1/chat/completions", json=ask, headers=user)).status_code == 200
    today = (await http.get("/v1/account", headers=user)).json()["period"]["since"]
    book(backend, charge(made.json()["id"], today, "cloud", 2.5))
    refused = await http.post("/v1/chat/completions", json=ask, headers=user)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.json()["error"]["type"] == "insufficient_quota"
    assert refused.headers["x-should-retry"] == "false"
    assert "retry-after" not in refused.headers
    shown = (await http.get("/v1/account", headers=user)).json()
    assert shown["period"] == {"since": today, "server_usd": 2.5}
    await http.patch(f"/v1/keys/{made.json()['id']}", json={"usd": 0}, headers=admin)
    assert (await http.post("/v1/chat/completions", json=ask, headers=user)).status_code == 200


async def test_an_answer_without_a_limit_fits_into_its_keys_minute(backend, http):
    await backend.make_key("ada", Role.OPERATOR, {})
    _, secret = await backend.make_key("app", Role.USER, {"tokens_per_minute": 40})
    user = {"authorization": f"Bearer {secret}"}
    ask = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    reply = await http.post("/v1/chat/completions", json=ask, headers=user)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    assert usage["total_tokens"] == 40
    assert reply.json()["choices"][0]["finish_reason"] == "length"
    refused = await http.post("/v1/chat/completions", json=ask | {"max_tokens": 60}, headers=user)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert "max_tokens" in refused.json()["error"]["message"]
