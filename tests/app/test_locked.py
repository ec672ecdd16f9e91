"""A real application with two replicas of the API: who is let in, what outlives its parts, what an operator sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from tandem.app.cli.server.local_ray import LocalRay
from tandem.deployments.access.store import Ledger
from tests.applications import deploy, deployed, replicas, until
from tests.conftest import Running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),  # the first test that needs Ray starts it
]

APP = "locked"
ASK: dict[str, Any] = {
    "model": "tandem",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 8,
    "temperature": 0,
}
CHAT = "/v1/chat/completions"
LIMIT = 400  # tokens a minute; fifty answers may take more
USD = 1e-4  # likewise
NULL: dict[str, Any] = {"kind": "null", "capacity": 2, "tokens_per_s": 50}


def settings(ledger: Path) -> dict[str, Any]:
    """Return settings of an application without models, whose verifier has two places."""
    return {
        "verifier": {"engine": NULL},
        "drafter": {"replicas": 0},
        "ingress_replicas": 2,
        "ledger": {"path": ledger},
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ledger") / "ledger.sqlite"


@pytest.fixture(scope="module")
def address(application: Running, path: Path) -> Iterator[str]:
    with deployed(settings(path), APP, application) as address:
        yield address


@pytest.fixture(scope="module")
def operator(address: str) -> dict[str, str]:
    """The headers of an operator, whose key is the first: this machine needs none until then."""
    with httpx.Client(base_url=address, timeout=60) as client:
        reply = client.post("/v1/keys", json={"name": "boss", "role": "operator"})
    return {"Authorization": f"Bearer {reply.raise_for_status().json()['secret']}"}


@pytest.fixture
async def http(address: str, operator: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key, once every replica of the API asks for one."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        await until(lambda: says(client, {}, 401))
        yield client


async def status(client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None) -> int:
    return (await client.get(path, headers=headers)).status_code


async def says(client: httpx.AsyncClient, headers: dict[str, str], code: int) -> bool:
    """Whether all replicas of the API do: so many requests reach each of the two for all but certain."""
    replies = await asyncio.gather(*(status(client, "/v1/models", headers) for _ in range(12)))
    return set(replies) == {code}


async def made(
    http: httpx.AsyncClient, form: dict[str, Any], headers: dict[str, str]
) -> tuple[str, dict[str, str]]:
    reply = (await http.post("/v1/keys", json=form, headers=headers)).raise_for_status().json()
    return reply["id"], {"Authorization": f"Bearer {reply['secret']}"}


async def scraped(http: httpx.AsyncClient, headers: dict[str, str]) -> dict[tuple[Any, ...], float]:
    """Return the metrics from any replica of the API."""
    reply = (await http.get("/metrics", headers=headers)).raise_for_status()
    families = text_string_to_metric_families(reply.text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def logged(cluster: LocalRay, deployment: str, app: str) -> list[str]:
    """Return the logs of all its replicas, those of other tests included."""
    return [log.read_text() for log in cluster.folder.rglob(f"replica_{app}_{deployment}_*.log")]


async def test_one_scrape_sees_all_replicas_of_the_api(
    http: httpx.AsyncClient, operator: dict[str, str], cluster: LocalRay
) -> None:
    _, user = await made(http, {"name": "scraped"}, operator)
    await until(lambda: says(http, user, 200))
    replies: list[httpx.Response] = []

    def own() -> list[str]:
        """The logs of the replicas that have answered."""
        ids = [reply.json()["id"] for reply in replies]
        return [log for log in logged(cluster, "Ingress", APP) if any(answer in log for answer in ids)]

    async def answering() -> bool:
        """Whether both replicas have answered, after one more request."""
        replies.append((await http.post(CHAT, json=ASK, headers=user)).raise_for_status())
        return len(own()) == 2

    await until(answering)  # HAProxy looks twice before it sends a new replica any
    requests = ("tandem_requests_total", ("mode", "cloud"), ("status", "200"))
    tokens = ("vllm:generation_tokens_total", ("model_name", "tandem"), ("origin", "cloud"))

    async def counted() -> bool:
        """Return whether many scrapes, which reach both replicas for all but certain, see all requests."""
        found = await asyncio.gather(*(scraped(http, operator) for _ in range(8)))
        return {scrape.get(requests) for scrape in found} == {float(len(replies))}

    await until(counted)
    found = await scraped(http, operator)
    assert found[tokens] == len(replies) * ASK["max_tokens"]
    assert found["tandem_replicas", ("model_name", "tandem"), ("pool", "verifier")] == 1
    running = {key: value for key, value in found.items() if key[0] == "vllm:num_requests_running"}
    ((_, *labels),) = running
    assert dict(labels)["pool"] == "verifier"
    accept = {"accept": "application/openmetrics-text"}
    reply = await http.get("/metrics", headers=operator | accept)
    assert requests[0] in {s.name for family in openmetrics(reply.text) for s in family.samples}

    mistaken = await http.post(
        CHAT, json=ASK | {"tandem": {"mode": "device", "device": "toaster"}}, headers=user
    )
    assert mistaken.status_code == 404
    answers = {reply.json()["id"]: reply.headers["x-request-id"] for reply in replies}

    async def mistaken_is_logged() -> bool:
        return any("status=404 error=device_not_found" in log for log in own())

    await until(mistaken_is_logged)  # a line is written when its answer has gone
    lines = [line for log in own() for line in log.splitlines()]
    for answer, request_id in answers.items():
        (line,) = (line for line in lines if f"answer={answer}" in line)
        assert f" {request_id} -- request " in line
    assert not any(word in line for line in lines for word in ("Traceback", "ERROR", "toaster"))
    assert any("loaded model=target" in log for log in logged(cluster, "Verifier", "tandem"))


@pytest.mark.parametrize("part", ["Access", "Router"])
async def test_keys_and_bills_outlive(
    part: str, http: httpx.AsyncClient, operator: dict[str, str], path: Path
) -> None:
    """No request is refused, and no bill lost or booked twice, though the part dies as the bills are sent."""
    id, user = await made(http, {"name": "app", "requests_per_minute": 100}, operator)
    await until(lambda: says(http, user, 200))
    for _ in range(8):
        reply = await http.post(CHAT, json=ASK, headers=user)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "100"

    async def booked(requests: int) -> bool:
        """Return whether the account shows so many; while a part is away, it may not answer (503)."""
        account = (await http.get("/v1/account", headers=user)).json()
        return account.get("account") == id and account["requests"] == requests

    async def written() -> bool:
        ledger = Ledger(path)
        requests = sum(bill.requests for account, _, bill, *_ in ledger.bills() if account == id)
        ledger.close()
        return requests == 9

    (victim,) = (before := replicas(APP, part)).values()
    ray.kill(victim)
    assert (await http.post(CHAT, json=ASK, headers=user)).status_code == 200
    assert (await http.post(CHAT, json=ASK, headers={"Authorization": "Bearer invented"})).status_code == 401
    await until(lambda: booked(9))
    await until(written)
    assert not before.keys() & replicas(APP, part).keys(), "it was replaced"

    assert (await http.delete(f"/v1/keys/{id}", headers=operator)).status_code == 204
    await until(lambda: says(http, user, 401))


async def test_a_client_within_its_limit_is_never_refused(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    """One that may have one answer at once asks again as soon as it has the last byte, streaming or not."""
    _, user = await made(http, {"name": "one at a time", "concurrent": 1}, operator)
    await until(lambda: says(http, user, 200))
    ask = ASK | {"max_tokens": 2, "ignore_eos": True}
    for stream in (False, True):
        replies = [await http.post(CHAT, json=ask | {"stream": stream}, headers=user) for _ in range(50)]
        assert [reply.status_code for reply in replies] == [200] * 50
    several = [http.post(CHAT, json=ask | {"max_tokens": 100}, headers=user) for _ in range(4)]
    assert {reply.status_code for reply in await asyncio.gather(*several)} == {200, 429}, "the limit holds"


async def test_fifty_at_once_stay_within_tokens_a_minute(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    _, user = await made(http, {"name": "many", "tokens_per_minute": LIMIT}, operator)
    await until(lambda: says(http, user, 200))
    began_s = time.monotonic()
    replies = await asyncio.gather(*(http.post(CHAT, json=ASK, headers=user) for _ in range(50)))
    minutes = (time.monotonic() - began_s) / 60
    taken = sum(reply.json()["usage"]["total_tokens"] for reply in replies if reply.is_success)
    assert LIMIT / 2 < taken <= LIMIT * (1 + minutes)
    assert {reply.json()["error"]["code"] for reply in replies if reply.is_error} == {"rate_limit_exceeded"}


async def test_fifty_at_once_stay_within_dollars(http: httpx.AsyncClient, operator: dict[str, str]) -> None:
    """Requests that must wait for reservations are told so; once the dollars are spent, OpenAI's error says that."""
    _, user = await made(http, {"name": "dear", "usd": USD, "per": "month"}, operator)
    await until(lambda: says(http, user, 200))
    replies = await asyncio.gather(*(http.post(CHAT, json=ASK, headers=user) for _ in range(50)))
    assert any(reply.is_success for reply in replies)
    codes = {reply.json()["error"]["code"] for reply in replies if reply.is_error}
    assert codes, "fifty cost more"
    assert codes <= {"rate_limit_exceeded", "insufficient_quota"}

    async def spent() -> bool:
        reply = await http.post(CHAT, json=ASK, headers=user)
        return reply.is_error and reply.json()["error"]["code"] == "insufficient_quota"

    await until(spent)
    account = (await http.get("/v1/account", headers=user)).json()
    assert USD / 2 < account["period"]["server_usd"] <= USD
    (used,) = (await http.get("/v1/usage", headers=user, params={"by": ["account", "mode"]})).json()["data"]
    assert (used["account"], used["mode"]) == (account["account"], "cloud")
    assert used["server_usd"] == pytest.approx(account["server_usd"])


async def test_fifty_at_once_over_two_keys_stay_within_their_teams_dollars(
    http: httpx.AsyncClient, operator: dict[str, str]
) -> None:
    form = {"name": "red", "usd": USD, "per": "month"}
    (await http.post("/v1/teams", json=form, headers=operator)).raise_for_status()
    users = [(await made(http, {"name": name, "team": "red"}, operator))[1] for name in ("one", "other")]
    for user in users:
        await until(lambda user=user: says(http, user, 200))  # type: ignore[misc]
    replies = await asyncio.gather(*(http.post(CHAT, json=ASK, headers=users[n % 2]) for n in range(50)))
    assert any(reply.is_success for reply in replies)
    assert any(reply.is_error and "team 'red'" in reply.json()["error"]["message"] for reply in replies)

    async def spent() -> bool:
        reply = await http.post(CHAT, json=ASK, headers=users[0])
        return reply.is_error and reply.json()["error"]["code"] == "insufficient_quota"

    await until(spent)
    (team,) = (await http.get("/v1/teams", headers=operator)).json()["data"]
    assert USD / 2 < team["period"]["server_usd"] <= USD
    rows = (await http.get("/v1/usage", headers=operator, params={"by": "team"})).json()["data"]
    assert {row["team"]: row["server_usd"] for row in rows}["red"] == pytest.approx(
        team["period"]["server_usd"]
    )


async def test_a_key_that_waits_gets_its_turn(http: httpx.AsyncClient, operator: dict[str, str]) -> None:
    """One key asks for far more than there is room for; another one, who comes last, is not last."""
    _, greedy = await made(http, {"name": "greedy"}, operator)
    _, modest = await made(http, {"name": "modest"}, operator)
    await until(lambda: says(http, modest, 200))
    order: list[str] = []

    async def ask(name: str, key: dict[str, str]) -> None:
        reply = await http.post(CHAT, json=ASK | {"max_tokens": 25, "ignore_eos": True}, headers=key)
        assert reply.status_code == 200, reply.text
        order.append(name)

    crowd = [asyncio.create_task(ask("greedy", greedy)) for _ in range(24)]
    await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    await ask("modest", modest)
    behind = sum(not task.done() for task in crowd)
    await asyncio.gather(*crowd)
    assert behind >= 6, f"{order}"


async def test_another_ledger_does_not_open_what_had_keys(
    http: httpx.AsyncClient, operator: dict[str, str], path: Path
) -> None:
    """And who was let in before still is."""
    other = path.with_name("other.sqlite")
    with pytest.raises(RuntimeError, match="Access"):
        await asyncio.to_thread(deploy, settings(other), APP)
    message = serve.status().applications[APP].deployments["Access"].message
    assert f"keys in {path} have guarded the API, and there are none in {other}" in message
    assert await says(http, {}, 401)
    assert await says(http, operator, 200)
