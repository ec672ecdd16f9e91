"""Teams of keys over HTTP."""

from __future__ import annotations

from tandem.deployments.access.keys import Role
from tandem.deployments.access.store import BillBatch
from tandem.deployments.request.bill import Bill, Charge
from tandem.policies.cost import Used


async def test_a_team_from_its_making_to_its_end(backend, http):
    _, operator = await backend.make_key("ada", Role.OPERATOR, {})
    admin = {"authorization": f"Bearer {operator}"}

    async def ask(method: str, path: str, **body):
        return await http.request(method, path, headers=admin, **({"json": body} if body else {}))

    made = await ask("POST", "/v1/teams", name="red", usd=2.0, per="day")
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["limits"]["usd"], made.json()["keys"]) == ("red", 2.0, [])
    refused = await ask("POST", "/v1/keys", name="app", team="blue")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "team_not_found")
    keys = [(await ask("POST", "/v1/keys", name=name, team="red")).json() for name in ("app", "web")]
    assert [key["team"] for key in keys] == ["red", "red"]
    today = (await ask("GET", "/v1/teams")).json()["data"][0]["period"]["since"]
    bill = Bill(1, Used(10, 20), 0.0, 2.5)
    backend.treasury.charge(BillBatch("test", 1, [Charge(keys[0]["id"], "", bill, "cloud", "null", today)]))
    say = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    other = {"authorization": f"Bearer {keys[1]['secret']}"}
    refused = await http.post("/v1/chat/completions", json=say, headers=other)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert "for the team 'red'" in refused.json()["error"]["message"]
    rows = (await http.get("/v1/usage", params={"by": ["team", "account"]}, headers=admin)).json()["data"]
    assert [(row["team"], row["account"], row["server_usd"]) for row in rows] == [("red", keys[0]["id"], 2.5)]
    assert (await ask("PATCH", "/v1/teams/red", usd=5.0)).json()["limits"]["usd"] == 5.0
    assert (await http.post("/v1/chat/completions", json=say, headers=other)).status_code == 200
    (shown,) = (await ask("GET", "/v1/teams")).json()["data"]
    assert (shown["keys"], shown["period"]["server_usd"]) == ([key["id"] for key in keys], 2.5)
    assert (await ask("DELETE", "/v1/teams/red")).status_code == 409
    for key in keys:
        await ask("PATCH", f"/v1/keys/{key['id']}", team="")
    assert (await ask("DELETE", "/v1/teams/red")).status_code == 204
    assert (await ask("DELETE", "/v1/teams/red")).status_code == 404
    assert (await http.get("/v1/teams", headers=other)).status_code == 403


async def test_an_answer_without_a_limit_fits_into_its_teams_minute(backend, http):
    await backend.make_key("ada", Role.OPERATOR, {})
    await backend.make_team("red", {"tokens_per_minute": 40})
    _, secret = await backend.make_key("app", Role.USER, {"tokens_per_minute": 90}, "red")
    ask = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    reply = await http.post("/v1/chat/completions", json=ask, headers={"authorization": f"Bearer {secret}"})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["total_tokens"] == 40
    assert reply.headers["x-ratelimit-limit-tokens"] == "40"
