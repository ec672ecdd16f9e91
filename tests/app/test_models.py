"""Several models behind one address, as the checked-in YAML has them, on real Ray: each has pools of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from openai import NotFoundError, OpenAI

from tandem.app.cli.server.up import CONFIG, read
from tests.applications import deployed, until
from tests.conftest import Running

FILE = CONFIG.with_name("models.yaml")
QUESTION = [{"role": "user", "content": "Tell me about the town of Marworth."}]
LARGE, MEDIUM, ALIAS = "tandem", "tandem-medium", "gpt-4o-mini"


def test_the_file_holds() -> None:
    plan = read(FILE)
    assert (plan.model, plan.mode, plan.chats) == (LARGE, "speculative", True)
    assert list(plan.settings.served) == [LARGE, MEDIUM]


@pytest.fixture(scope="module")
def address(application: Running) -> Iterator[str]:
    """Yield the address of an application with both models."""
    settings = yaml.safe_load(FILE.read_text())["applications"][0]["args"]
    with deployed(settings, "models", application) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def asked(client: OpenAI, model: str, **wishes: Any) -> tuple[str, dict[str, Any]]:
    """Return a model's answer, and the stats of it."""
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=40, extra_body={"tandem": wishes}
    )
    assert answer.model == model
    assert answer.model_extra is not None
    return answer.choices[0].message.content or "", answer.model_extra["tandem"]["stats"]


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_each_model_answers_from_its_own_pools(client: OpenAI, address: str) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:

        async def ready() -> bool:
            there = (await http.get("/readyz")).json()
            return there.get("verifier") == there.get("drafter") == 1 and "verifier-tandem-medium" in there

        await until(ready)
        large, at_large = await asyncio.to_thread(asked, client, LARGE, mode="cloud")
        medium, at_medium = await asyncio.to_thread(asked, client, MEDIUM, mode="cloud")  # from an empty pool
        assert large != medium
        for billed, price_in, price_out in ((at_large, 2.5, 10.0), (at_medium, 0.15, 0.6)):
            tokens = billed["tokens"]
            usd = (tokens["server_in"] * price_in + tokens["server_out"] * price_out) * 1e-6
            assert billed["cost"]["usd"] == pytest.approx(usd)

        async def counted() -> bool:
            text = (await http.get("/metrics")).text
            name = r'vllm:request_success_total{.*model_name="%s"} '
            return all(re.search(name % model, text) for model in (LARGE, MEDIUM))

        await until(counted)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_devices_help_the_models_that_they_are_for(client: OpenAI) -> None:
    for model in (LARGE, MEDIUM):
        alone, _ = asked(client, model, mode="cloud")
        helped, stats = asked(client, model, mode="speculative", device="laptop")
        assert helped == alone
        assert (stats["mode"], stats["device"]) == ("speculative", "laptop")
    assert asked(client, LARGE, mode="device", device="pixel-7-pro")[1]["device"] == "pixel-7-pro"
    with pytest.raises(NotFoundError, match="no device 'pixel-7-pro'"):
        asked(client, MEDIUM, mode="device", device="pixel-7-pro")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_model_has_further_names(client: OpenAI) -> None:
    listed = {model.id: (model.model_extra or {})["aliases"] for model in client.models.list().data}
    assert listed == {LARGE: [ALIAS], MEDIUM: []}
    assert client.models.retrieve(ALIAS).id == LARGE
    assert asked(client, ALIAS, mode="cloud")[0] == asked(client, LARGE, mode="cloud")[0]
    answer = client.responses.create(model=ALIAS, input="Hello!", max_output_tokens=16)
    assert answer.model == ALIAS


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_unknown_names_are_refused_with_those_there_are(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match=f"{LARGE}.*{ALIAS}.*{MEDIUM}"):
        asked(client, "large")
