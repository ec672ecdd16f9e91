"""A real application with two replicas of the API: who is let in, what outlives a router, what an operator sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from tandem.app.cli.server.local_ray import LocalRay
from tandem.app.main import build
from tandem.app.settings import Settings
from tandem.deployments.access.caller_cache import KNOWN_S
from tandem.deployments.access.store import Ledger
from tests.conftest import Running

pytestmark = pytest.mark.timeout(240)  # the first test that needs Ray starts it

APP = "locked"
ASK: dict[str, Any] = {
    "model": "tandem",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 8,
    "temperature": 0,
}
CHAT = "/v1/chat/completions"
NULL: dict[str, Any] = {"kind": "null", "capacity": 2, "tokens_per_s": 50}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def deploy(token: str, **ledger: object) -> None:
    """An application without models, whose verifier has two places."""
    settings = Settings.model_validate(
        {
            "verifier": {"engine": NULL},
            "drafter": {"replicas": 0},
            "ingress_replicas": 2,
            "ledger": ledger,
            "endpoint": {"token": token},
        }
    )
    serve.run(build(settings), name=APP, route_prefix=f"/{APP}")


@pytest.fixture
def address(application: Running, path: Path) -> Iterator[str]:
    """Of the application, with no keys."""
    deploy(application.token, path=path, open=True)  # the test before had keys
    yield f"{application.address}/{APP}"
    serve.delete(APP)


@pytest.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        await until(lambda: status(client, "/readyz"), 200, within_s=60)
        yield client


async def status(client: httpx.AsyncClient, path: str, headers: dict[str, str] | None = None) -> int:
    return (await client.get(path, headers=headers)).status_code


async def everywhere(client: httpx.AsyncClient, headers: dict[str, str]) -> set[int]:
    """What all replicas of the API say: so many requests reach each of the two for all but certain."""
    replies = await asyncio.gather(*(status(client, "/v1/models", headers) for _ in range(12)))
    return set(replies)


async def until(ask: Callable[[], Awaitable[object]], expected: object, within_s: float) -> None:
    """Ask again and again. The limit is the promise that is tested."""
    deadline = time.monotonic() + within_s
    while (found := await ask()) != expected:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def made(
    http: httpx.AsyncClient, form: dict[str, Any], headers: dict[str, str]
) -> tuple[str, dict[str, str]]:
    reply = (await http.post("/v1/keys", json=form, headers=headers)).raise_for_status().json()
    return reply["id"], {"Authorization": f"Bearer {reply['secret']}"}


async def scraped(http: httpx.AsyncClient, headers: dict[str, str]) -> dict[tuple[Any, ...], float]:
    """What Prometheus gets from whichever replica of the API answers."""
    reply = (await http.get("/metrics", headers=headers)).raise_for_status()
    families = text_string_to_metric_families(reply.text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def logged(cluster: LocalRay, deployment: str, app: str) -> list[str]:
    """What all its replicas have written, those of other tests among them."""
    return [log.read_text() for log in cluster.folder.rglob(f"replica_{app}_{deployment}_*.log")]


async def test_one_scrape_sees_all_replicas_of_the_api(
    http: httpx.AsyncClient, application: Running, cluster: LocalRay
) -> None:
    replies: list[httpx.Response] = []

    def own() -> list[str]:
        """The logs of the replicas that have answered."""
        ids = [reply.json()["id"] for reply in replies]
        return [log for log in logged(cluster, "Ingress", APP) if any(answer in log for answer in ids)]

    async def answering() -> int:
        """Replicas that have answered, after one more request."""
        replies.append((await http.post(CHAT, json=ASK)).raise_for_status())
        return len(own())

    await until(answering, 2, within_s=30)  # HAProxy looks twice before it sends a new replica any
    requests = ("tandem_requests_total", ("mode", "cloud"), ("status", "200"))
    tokens = ("vllm:generation_tokens_total", ("model_name", "tandem"), ("origin", "cloud"))

    async def counted() -> set[float | None]:
        """What many scrapes say, which reach both replicas for all but certain."""
        found = await asyncio.gather(*(scraped(http, {}) for _ in range(8)))
        return {scrape.get(requests) for scrape in found}

    await until(counted, {float(len(replies))}, within_s=5)
    found = await scraped(http, {})
    assert found[tokens] == len(replies) * ASK["max_tokens"]
    assert found["tandem_replicas", ("pool", "verifier")] == 1
    running = {key: value for key, value in found.items() if key[0] == "vllm:num_requests_running"}
    ((_, *labels),) = running
    assert dict(labels)["pool"] == "verifier"
    accept = {"accept": "application/openmetrics-text"}
    reply = await http.get("/metrics", headers=accept)
    assert requests[0] in {s.name for family in openmetrics(reply.text) for s in family.samples}

    mistaken = await http.post(CHAT, json=ASK | {"tandem": {"mode": "device", "device": "toaster"}})
    assert mistaken.status_code == 404
    answers = {reply.json()["id"]: reply.headers["x-request-id"] for reply in replies}

    async def mistaken_is_logged() -> bool:
        return any("status=404 error=device_not_found" in log for log in own())

    await until(mistaken_is_logged, True, within_s=5)  # a line is written when its answer has gone
    lines = [line for log in own() for line in log.splitlines()]
    for answer, request_id in answers.items():
        (line,) = (line for line in lines if f"answer={answer}" in line)
        assert f" {request_id} -- request " in line
    assert not any(word in line for line in lines for word in ("Traceback", "ERROR", "toaster"))
    assert any("loaded model=target" in log for log in logged(cluster, "Verifier", "tandem"))


async def test_keys_and_bills_outlive_the_router(http: httpx.AsyncClient, path: Path) -> None:
    assert (await http.post(CHAT, json=ASK)).status_code == 200, "from this machine, before there are keys"
    _, operator = await made(http, {"name": "boss", "role": "operator"}, {})
    id, user = await made(http, {"name": "app", "requests_per_minute": 100}, operator)
    await until(lambda: everywhere(http, {}), {401}, within_s=KNOWN_S + 1)
    for _ in range(8):
        reply = await http.post(CHAT, json=ASK, headers=user)
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "100"

    async def booked() -> int:
        return (await http.get("/v1/account", headers=user)).json()["requests"]

    async def written() -> int:
        ledger = Ledger(path)
        requests = sum(bill.requests for account, _, bill in ledger.bills() if account == id)
        ledger.close()
        return requests

    await until(booked, 8, within_s=5)
    await until(written, 8, within_s=5)

    (router,) = (
        actor
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].startswith(f"SERVE_REPLICA::{APP}#Router")
    )
    ray.kill(ray.get_actor(router["name"], namespace=router["namespace"]))
    assert (await http.post(CHAT, json=ASK, headers=user)).status_code == 200
    assert (await http.post(CHAT, json=ASK, headers={"Authorization": "Bearer invented"})).status_code == 401
    account = (await http.get("/v1/account", headers=user)).json()
    assert account["account"] == id
    await until(booked, 9, within_s=5)

    assert (await http.delete(f"/v1/keys/{id}", headers=operator)).status_code == 204
    await until(lambda: everywhere(http, user), {401}, within_s=KNOWN_S + 1)


async def test_another_ledger_does_not_open_what_had_keys(
    http: httpx.AsyncClient, application: Running, path: Path
) -> None:
    """And who was let in before still is."""
    _, operator = await made(http, {"name": "boss", "role": "operator"}, {})
    await until(lambda: everywhere(http, {}), {401}, within_s=KNOWN_S + 1)
    with pytest.raises(RuntimeError, match="Router"):
        await asyncio.to_thread(deploy, application.token, path=path.with_name("other.sqlite"))
    message = serve.status().applications[APP].deployments["Router"].message
    assert (
        f"keys in {path} have guarded the API, and there are none in {path.with_name('other.sqlite')}"
        in message
    )
    assert await everywhere(http, {}) == {401}
    assert await everywhere(http, operator) == {200}


async def test_a_key_that_waits_gets_its_turn(http: httpx.AsyncClient) -> None:
    """One key asks for far more than there is room for; another one, who comes last, is not last."""
    _, operator = await made(http, {"name": "boss", "role": "operator"}, {})
    _, greedy = await made(http, {"name": "greedy"}, operator)
    _, modest = await made(http, {"name": "modest"}, operator)
    await until(lambda: everywhere(http, modest), {200}, within_s=KNOWN_S + 1)
    order: list[str] = []

    async def ask(name: str, key: dict[str, str]) -> None:
        reply = await http.post(CHAT, json=ASK | {"max_tokens": 50, "ignore_eos": True}, headers=key)
        assert reply.status_code == 200, reply.text
        order.append(name)

    crowd = [asyncio.create_task(ask("greedy", greedy)) for _ in range(12)]
    await asyncio.wait(crowd, return_when=asyncio.FIRST_COMPLETED)
    await ask("modest", modest)
    behind = sum(not task.done() for task in crowd)
    await asyncio.gather(*crowd)
    assert behind >= 6, f"{order}"
