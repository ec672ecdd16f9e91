"""A service as the cloud: this application answers from another one, over HTTP, on real Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from tandem.app.cli.server.up import CONFIG
from tandem.app.preflight import check_serve_yaml
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import ServiceSettings, build_engine, context_of
from tests.applications import deployed, until
from tests.conftest import Running

FILE = CONFIG.with_name("service.yaml")
QUESTION = [{"role": "user", "content": "Tell me about the town of Marworth."}]
KEY_NAME = "SERVICE_API_KEY"


def service(base_url: str, **settings: Any) -> dict[str, Any]:
    return {
        "kind": "openai",
        "base_url": base_url,
        "model": "tandem",
        "tokenizer": "target",
        "context": 512,
    } | settings


@pytest.fixture
def content() -> dict[str, Any]:
    """Return the checked-in YAML, with models that are here."""
    content: dict[str, Any] = yaml.safe_load(FILE.read_text())
    args = content["applications"][0]["args"]
    args["verifier"]["engine"]["tokenizer"], args["hosts"][0]["engine"]["model"] = "target", "small"
    return content


def test_the_file_holds(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, "x")
    (settings,) = check_serve_yaml(content)
    engine = settings.verifier.engine
    assert isinstance(engine, ServiceSettings)
    assert (settings.text_model, context_of(engine), engine.continuation) == ("target", 8192, "none")


def test_a_missing_key_ends_it_before_anything_starts(
    content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_NAME, raising=False)
    with pytest.raises(ValueError, match=f"verifier.engine.api_key_env: .*{KEY_NAME} is not set"):
        check_serve_yaml(content)


def test_a_tokenizer_of_no_use_is_named(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, "x")
    content["applications"][0]["args"]["verifier"]["engine"]["tokenizer"] = "/no/such/folder"
    with pytest.raises(ValueError, match=r"verifier.engine.tokenizer: there is no folder or GGUF file"):
        check_serve_yaml(content)


def pool(*others: dict[str, Any], **settings: Any) -> ServiceSettings:
    engine = service("http://a/v1", price_in=1, price_out=2, max_sessions=10, **settings)
    made = Settings.model_validate(
        {"verifier": {"engine": engine | {"others": list(others)}}}
    ).verifier.engine
    assert isinstance(made, ServiceSettings)
    return made


def test_other_services_differ_in_what_is_said_of_them() -> None:
    made = pool(
        {"base_url": "http://b/v1", "context": 99, "max_sessions": 3}, {"model": "small", "price_out": 1}
    )
    first, second, third = made.services
    assert [service.base_url for service in made.services] == ["http://a/v1", "http://b/v1", "http://a/v1"]
    assert (second.model, third.model, third.max_sessions, third.kind) == ("tandem", "small", 10, "openai")
    assert [s.price and s.price.decode for s in (first, second, third)] == [2e-6, 2e-6, 1e-6]
    assert [service.rate_limit.wait_s for service in made.services] == [0.0] * 3
    assert (context_of(made), made.places) == (99, 8)
    assert pool().services == (pool(),)
    assert pool().rate_limit.wait_s == 5.0
    assert pool({"model": "b"}, rate_limit={"wait_s": 2}).services[1].rate_limit.wait_s == 2.0
    unpriced = pool({"model": "b", "price_in": None, "price_out": None})
    assert [service.price is None for service in unpriced.services] == [False, True]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (
            {"model": "x", "base_ur": "http://b/v1"},
            r"others\[0\]: base_ur: no such key, did you mean base_url",
        ),
        ({"base_url": "ftp://b"}, r"others\[0\]: base_url"),
        ({"model": "x", "tokenizer": "small"}, "one tokenizer"),
        ({}, "named twice"),
        ({"model": "x", "others": [{"model": "y"}]}, "others"),
    ],
)
def test_other_services_of_no_use_are_named(other: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        pool(other)


def test_a_device_asks_one_service(content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_NAME, "x")
    args = content["applications"][0]["args"]
    args["hosts"][0]["engine"] = service("http://a/v1", others=[{"model": "b"}])
    with pytest.raises(ValueError, match="hosts.0..engine.others: a device asks one service"):
        check_serve_yaml(content)
    with pytest.raises(ValueError, match="one engine asks one service"):
        build_engine(pool({"model": "b"}))


def test_a_key_is_no_setting() -> None:
    with pytest.raises(ValueError, match="api_key"):
        Settings.model_validate({"verifier": {"engine": service("http://x/v1", api_key="sk-1")}})


@pytest.fixture(scope="module")
def front(application: Running) -> Iterator[str]:
    """The address of an application whose cloud is the other one."""
    unknown = {"model": "nobody"}
    engine = service(f"{application.address}/v1", price_in=1.0, price_out=2.0, others=[unknown])
    settings = {
        "verifier": {"engine": engine},
        "drafter": {"replicas": 0},
        "hosts": [
            {
                "name": "near",
                "engine": {"kind": "torch", "model": "small", "kv_blocks": 256, "max_sessions": 8},
                "devices": [{"name": "tablet", "profile": "native"}],
            }
        ],
    }
    with deployed(settings, "front", application) as address:
        yield address


def asked(address: str, **wishes: Any) -> tuple[str, dict[str, Any]]:
    """Return an answer's text and its stats."""
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        answer = client.chat.completions.create(
            model="tandem", messages=QUESTION, temperature=0, max_tokens=40, extra_body={"tandem": wishes}
        )
    assert answer.model_extra is not None
    return answer.choices[0].message.content or "", answer.model_extra["tandem"]["stats"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_services_answers_are_given_at_its_prices(front: str, application: Running) -> None:
    expected, _ = asked(application.address, mode="cloud")
    text, stats = asked(front, mode="cloud")
    assert text == expected
    assert stats["replans"] <= 1  # the other service may have been asked first
    tokens = stats["tokens"]
    assert stats["cost"]["usd"] == pytest.approx(
        (tokens["server_in"] * 1.0 + tokens["server_out"] * 2.0) * 1e-6
    )
    assert tokens["server_out"] > 0


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_service_that_refuses_everything_is_passed_over_and_named(
    front: str, application: Running
) -> None:
    expected, _ = asked(application.address, mode="cloud")
    each = [asyncio.to_thread(asked, front, mode="cloud") for _ in range(4)]  # at once: both are asked
    assert [text for text, _ in await asyncio.gather(*each)] == [expected] * 4
    refusal = "the service of nobody refuses every request: it does not know the model (HTTP 404)"
    async with httpx.AsyncClient() as http:

        async def named() -> bool:
            return (await http.get(f"{front}/readyz")).json()["refused"] == [refusal]

        await until(named, 10.0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_service_races_a_device(front: str) -> None:
    for budget in (0.0, 1.0):
        text, stats = asked(front, mode="race", device="tablet", budget=budget)
        assert text
        assert (stats["mode"], stats["device"]) == ("race", "tablet")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_a_service_cannot_do_is_refused(front: str) -> None:
    body = {"model": "tandem", "messages": QUESTION, "max_tokens": 8, "tandem": {"mode": "speculative"}}
    reply = httpx.post(
        f"{front}/v1/chat/completions", json=body | {"tandem": {"mode": "speculative", "device": "tablet"}}
    )
    assert (reply.status_code, "cannot verify" in reply.text) == (400, True)
    reply = httpx.post(
        f"{front}/v1/chat/completions", json=body | {"tandem": {"mode": "cloud"}, "logprobs": True}
    )
    assert (reply.status_code, "log-probabilities" in reply.text) == (400, True)
