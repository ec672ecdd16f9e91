"""Endpoints for operators: health, readiness, devices, metrics, documentation."""

import asyncio
import json
import re
import time

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tandem.app.api.routes import create_api
from tandem.deployments.config.settings import GateSettings
from tandem.deployments.modes import MODES
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import EngineStopped
from tests.app.api.null_backend import TOKENIZER, NullBackend, times
from tests.servers import served

NULL = ("model_name", "null")
HELLO = {"model": "null", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 9}


async def samples(http) -> dict:
    reply = await http.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return values(text_string_to_metric_families(reply.text))


def values(families) -> dict:
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
    assert reply.json() == {"status": "not ready", "reasons": backend.missing, "verifiers": 0}


async def test_devices(http):
    assert (await http.get("/v1/devices")).json()["data"][0]["name"] == "pixel-1"


async def test_metrics(http):
    speculative = HELLO | {"tandem": {"mode": "speculative"}}
    for body in (HELLO, HELLO | {"stream": True, "n": 2}, speculative, HELLO | {"tandem": {"mode": "warp"}}):
        await http.post("/v1/chat/completions", json=body)
    found = await samples(http)

    def value(name: str, **labels: str) -> float:
        return found[name, *sorted(labels.items())]

    null = {"model_name": "null"}
    assert value("tandem_requests_total", mode="cloud", status="200") == 2
    assert value("tandem_requests_total", mode="speculative", status="200") == 1
    assert value("tandem_requests_total", mode="open", status="400") == 1
    assert value("vllm:generation_tokens_total", origin="cloud", **null) == 27
    assert value("vllm:generation_tokens_total", origin="draft", **null) == 7
    assert value("vllm:prompt_tokens_total", **null) == 3 * len(TOKENIZER.render_chat(HELLO["messages"]))
    assert value("vllm:request_success_total", finished_reason="length", **null) == 4
    assert value("vllm:spec_decode_num_draft_tokens_total", **null) == 4 * 8, "of four answers"
    assert value("vllm:spec_decode_num_accepted_tokens_total", **null) == 4 * 6
    assert value("vllm:time_to_first_token_seconds_count", mode="cloud", **null) == 2
    assert value("vllm:e2e_request_latency_seconds_count", mode="cloud", **null) == 2
    assert value("vllm:request_time_per_output_token_seconds_count", mode="cloud", **null) == 3
    assert value("vllm:request_time_per_output_token_seconds_sum", mode="speculative", **null) == (
        pytest.approx(0.001 / 8)
    )
    assert value("vllm:inter_token_latency_seconds_count", mode="cloud", **null) == 3 * 8
    assert value("vllm:request_decode_time_seconds_sum", mode="cloud", **null) == pytest.approx(3 * 0.001)
    assert value("vllm:request_generation_tokens_count", mode="cloud", **null) == 3
    assert value("vllm:request_generation_tokens_sum", mode="cloud", **null) == 27
    assert value("vllm:request_max_num_generation_tokens_sum", mode="cloud", **null) == 18
    assert value("vllm:request_params_n_sum", mode="cloud", **null) == 1 + 2
    assert value("vllm:request_params_max_tokens_sum", mode="cloud", **null) == 9 + 9
    assert value("vllm:request_prompt_tokens_count", mode="cloud", **null) == 2
    assert value("vllm:spec_decode_num_drafts_total", **null) == 4 * 2
    assert value("tandem_queue_seconds_count") == 3
    assert not any(
        name.startswith(("tandem_key_", "tandem_device_requests", "tandem_device_tokens")) and labels
        for name, *labels in found
    )
    assert value("tandem_usd_total", mode="cloud") >= 0


async def test_requests_count_for_their_key_and_their_device(http):
    made = (await http.post("/v1/keys", json={"name": "boss", "role": "operator"})).json()
    http.headers["authorization"] = f"Bearer {made['secret']}"
    with_device = HELLO | {"tandem": {"mode": "device", "device": "pixel-1"}}
    for body in (HELLO, with_device, HELLO | {"model": "gpt-9"}):
        await http.post("/v1/chat/completions", json=body)
    found = await samples(http)
    key = ("key", made["id"])
    assert found["tandem_key_requests_total", key] == 2, "what was not admitted is nobody's"
    assert found["tandem_key_output_tokens_total", key] == 18
    assert found["tandem_device_requests_total", ("device", "pixel-1")] == 1
    assert made["secret"] not in str(found)


async def test_latencies_are_in_order(http, backend):
    await http.post("/v1/chat/completions", json=HELLO)
    (seen,) = backend.observations
    assert 0 < seen.queue_s < seen.ttft_s < seen.total_s


async def test_no_label_has_a_clients_value(http):
    before = await samples(http)
    devices = ["toaster", "kettle"]
    made_up = [{"tandem": {"mode": "device", "device": device}} for device in devices]
    made_up += [{"tandem": {"mode": "warp"}}, {"model": "gpt-9"}, {"colour": "red"}]
    headers = {"authorization": "Bearer guessed", "x-request-id": "mine"}
    for more in made_up:
        await http.post("/v1/chat/completions", json=HELLO | more)
        await http.post("/v1/chat/completions", json=HELLO | more, headers=headers)
    new = (await samples(http)).keys() - before.keys()
    statuses = {dict(key[1:])["status"] for key in new if key[0] == "tandem_requests_total"}
    assert statuses == {"400", "404"}
    for word in (*devices, "warp", "gpt-9", "colour", "guessed", "mine"):
        assert word not in str(new)


async def test_gauges(http, backend):
    verifier = (("model_name", "null"), ("pool", "verifier"), ("replica", "10.0.0.1:1"))
    drafter = (("model_name", "small"), ("pool", "drafter"), ("replica", "10.0.0.2:1"))
    found = await samples(http)
    assert found["vllm:num_requests_running", *verifier] == 7
    assert found["vllm:num_requests_waiting", *verifier] == 2
    assert found["vllm:kv_cache_usage_perc", *verifier] == 0.75
    assert found["vllm:num_requests_running", *drafter] == 3
    assert ("vllm:kv_cache_usage_perc", *drafter) not in found, "it has none"
    assert found["tandem_replicas", NULL, ("pool", "verifier")] == 1
    assert found["tandem_devices", ("state", "registered")] == 1
    assert found["tandem_devices", ("state", "awaited")] == 2
    assert found["tandem_gate_waiting", NULL] == 0
    backend.snapshot = Snapshot(2, {"verifier": (), "drafter": ()})
    found = await samples(http)
    assert found["tandem_replicas", NULL, ("pool", "verifier")] == 0
    assert not any(name == "vllm:num_requests_running" for name, *_ in found), "no replica is left"


async def test_waiting_requests_are_counted(tmp_path):
    backend = NullBackend(capacity=1, ledger=tmp_path / "ledger.sqlite")
    backend.gate.settings = GateSettings(queue_s=30.0)
    backend.hold_after = 1
    await backend.treasury.open()
    async with served(create_api(backend, backend)) as address, httpx.AsyncClient(base_url=address) as http:
        made = (await http.post("/v1/keys", json={"name": "boss", "role": "operator"})).json()
        http.headers["authorization"] = f"Bearer {made['secret']}"
        async with asyncio.timeout(20), asyncio.TaskGroup() as requests:
            for _ in range(2):
                requests.create_task(http.post("/v1/chat/completions", json=HELLO))
            await times(1, backend.held)
            while (await samples(http))["tandem_gate_waiting", NULL] != 1:
                pass
            seen_s = time.monotonic()
            await samples(http)
            waited_s = time.monotonic() - seen_s
            backend.go.set()
    await backend.treasury.close()
    assert max(observed.queue_s for observed in backend.observations) >= waited_s > 0


async def test_openmetrics_if_asked_for(http):
    await http.post("/v1/chat/completions", json=HELLO)
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
    reply = await http.get("/metrics", headers={"accept": accept})
    assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert values(openmetrics(reply.text)) == await samples(http)
    assert "_created" not in reply.text


async def test_metrics_of_readers(http):
    """One reader is slower than the whole answer, and one answer has no reader."""
    chat = HELLO | {"n": 2, "tandem": {"mode": "device", "reader_rate": 0.001}}
    answer = (await http.post("/v1/chat/completions", json=chat)).json()
    prompt = {"model": "null", "prompt": "x", "max_tokens": 9, "tandem": {"mode": "device"}}
    await http.post("/v1/completions", json=prompt)
    found = await samples(http)
    device = ("mode", "device")
    assert found["tandem_stall_seconds_count", device] == 1
    assert found["tandem_stall_seconds_sum", device] == 0
    assert found["tandem_reader_tokens_total", device] == 2 * 9
    effective = answer["tandem"]["stats"]["reader"]["effective_tokens"]
    assert found["tandem_effective_tokens_total", device] == pytest.approx(effective, abs=1e-3)


async def test_a_client_that_left_is_counted_with_its_tokens(http, backend):
    backend.hold_after = 3
    request = asyncio.create_task(http.post("/v1/chat/completions", json=HELLO))
    await times(1, backend.held)
    request.cancel()
    await times(1, backend.closed)
    found = await samples(http)
    null = ("model_name", "null")
    assert found["tandem_requests_total", ("mode", "cloud"), ("status", "499")] == 1
    assert found["vllm:request_success_total", ("finished_reason", "abort"), null] == 1
    assert found["vllm:generation_tokens_total", null, ("origin", "cloud")] == 3
    assert found["vllm:prompt_tokens_total", null] > 0
    assert ("vllm:e2e_request_latency_seconds_count", ("mode", "cloud"), null) not in found


async def test_an_answer_that_failed_is_counted_with_its_tokens(http, backend):
    backend.fail_after = (2, EngineStopped("no verifier is left"))
    await http.post("/v1/chat/completions", json=HELLO)
    found = await samples(http)
    assert found["tandem_requests_total", ("mode", "cloud"), ("status", "503")] == 1
    assert found["vllm:generation_tokens_total", ("model_name", "null"), ("origin", "cloud")] == 2
    reasons = [labels for name, *labels in found if name == "vllm:request_success_total"]
    assert reasons == [[("finished_reason", "error"), ("model_name", "null")]]


def test_the_documentation_is_made_once(backend: NullBackend) -> None:
    """Making it keeps all others waiting for a tenth of a second, and needs no key."""
    api = create_api(backend, backend)
    assert api.openapi() is api.openapi()


async def test_the_documentation_is_complete(http):
    documentation = (await http.get("/openapi.json")).json()
    schemas = documentation["components"]["schemas"]
    for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(documentation)):
        assert reference in schemas
    own = {
        "mode",
        "device",
        "window",
        "reader_rate",
        "paced",
        "resumable",
        "budget",
        "exchange_rate",
        "min_quality",
        "privacy",
        "objective",
        "show_sketch",
    }
    assert schemas["TandemOptions"]["properties"].keys() == own
    assert schemas["TandemOptions"]["properties"]["window"]["description"] == "tokens drafted per round."
    assert schemas["Stats"]["properties"]["modes"]["properties"].keys() == MODES.keys()
    assert schemas["Sketched"]["properties"]["in_full"]["additionalProperties"] == {"type": "integer"}
    openai = {f"/v1/{path}" for path in ("chat/completions", "completions", "models", "devices", "account")}
    assert documentation["paths"].keys() >= openai
