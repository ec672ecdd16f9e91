"""What operators ask for: health, readiness, devices, metrics."""

import asyncio
import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.app.api.null_backend import times

HELLO = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 9}


async def samples(http) -> dict:
    reply = await http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(reply.text)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


async def test_health(http):
    for path in ("/healthz", "/health"):
        assert (await http.get(path)).json() == {"status": "ok"}
        head = await http.head(path)
        assert (head.status_code, head.content) == (200, b"")


async def test_version(http):
    assert re.fullmatch(r"\d+\.\d+\.\d+", (await http.get("/version")).json()["version"])


async def test_readiness_says_what_is_missing(http, backend):
    assert (await http.get("/readyz")).json() == {"status": "ready", "verifiers": 1}
    backend.missing = ["verifier: 0 of 1 replicas", "devices: 2 of 3"]
    reply = await http.get("/readyz")
    assert reply.status_code == 503
    assert reply.json() == {"status": "not ready", "reasons": backend.missing}


async def test_devices(http):
    assert (await http.get("/v1/devices")).json()["data"][0]["name"] == "pixel-1"


async def test_metrics(http):
    before = await samples(http)
    speculative = HELLO | {"tandem": {"mode": "speculative"}}
    for body in (HELLO, HELLO | {"stream": True}, speculative, HELLO | {"tandem": {"mode": "warp"}}):
        await http.post("/v1/chat/completions", json=body)
    after = await samples(http)

    def grown(name: str, **labels: str) -> float:
        key = (name, *sorted(labels.items()))
        return after[key] - before.get(key, 0)

    assert grown("tandem_requests_total", mode="cloud", status="200") == 2
    assert grown("tandem_requests_total", mode="speculative", status="200") == 1
    assert grown("tandem_requests_total", mode="open", status="400") == 1
    assert grown("tandem_tokens_total", origin="cloud") == 18
    assert grown("tandem_tokens_total", origin="draft") == 7
    assert grown("tandem_ttft_seconds_count", mode="cloud") == 2
    assert grown("tandem_tpot_seconds_count", mode="speculative") == 1
    assert not any("warp" in str(key) for key in after)


async def test_metrics_of_readers(http):
    """Of a reader who is not through with the first token when the last comes, and of nobody."""
    before = await samples(http)
    chat = HELLO | {"n": 2, "tandem": {"mode": "device", "reader_rate": 0.001}}
    answer = (await http.post("/v1/chat/completions", json=chat)).json()
    prompt = {"model": "null", "prompt": "x", "max_tokens": 9, "tandem": {"mode": "device"}}
    await http.post("/v1/completions", json=prompt)
    after = await samples(http)

    def grown(name: str) -> float:
        key = (name, ("mode", "device"))
        return after[key] - before.get(key, 0)

    assert grown("tandem_stall_seconds_count") == 1
    assert grown("tandem_stall_seconds_sum") == 0
    assert grown("tandem_reader_tokens_total") == 2 * 9
    effective = answer["tandem"]["stats"]["effective_tokens"]
    assert grown("tandem_effective_tokens_total") == pytest.approx(effective, abs=1e-3)


async def test_a_client_that_left_is_counted(http, backend):
    before = await samples(http)
    backend.hold_after = 1
    request = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO))
    await times(1, backend.held)
    request.cancel()
    await times(1, backend.closed)
    key = ("tandem_requests_total", ("mode", "open"), ("status", "499"))
    assert (await samples(http))[key] - before.get(key, 0) == 1


async def test_the_documentation_is_complete(http):
    documentation = (await http.get("/openapi.json")).json()
    schemas = documentation["components"]["schemas"]
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(documentation)):
        assert reference in schemas
    options = schemas["TandemOptions"]["properties"]
    assert options.keys() == {
        "mode",
        "device",
        "window",
        "reader_rate",
        "paced",
        "budget",
        "exchange_rate",
    }
    assert documentation["paths"].keys() >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/devices",
        "/v1/account",
    }
