"""Several models behind one address, on real Ray: each answers from pools of its own, and devices help them all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import NotFoundError, OpenAI

from tests.applications import deployed, until
from tests.conftest import Running

QUESTION = [{"role": "user", "content": "Tell me about the town of Marworth."}]
NAME = "models"
SETTINGS: dict[str, Any] = {
    "models": {
        "large": {"verifier": {"engine": {"kind": "torch", "model": "target"}}},
        "org/tiny": {
            "verifier": {"engine": {"kind": "torch", "model": "other"}},
            "drafter": {"replicas": 0},
        },
    },
    "hosts": [{"name": "models-edge", "devices": [{"name": "desk", "profile": "native"}]}],
}


@pytest.fixture(scope="module")
def address(application: Running) -> Iterator[str]:
    """Yield the address of an application with both models."""
    with deployed(SETTINGS, NAME, application) as address:
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
    assert [model.id for model in client.models.list().data] == ["large", "org/tiny"]
    async with httpx.AsyncClient(base_url=address, timeout=60) as http:

        async def up() -> bool:
            there = (await http.get("/readyz")).json()
            return [there.get(pool) for pool in ("verifier", "drafter", "verifier-org-tiny")] == [1, 1, 1]

        async def counted() -> bool:
            text = (await http.get("/metrics")).text
            name = r'vllm:request_success_total{.*model_name="%s"} 1\.0'
            return all(re.search(name % model, text) for model in ("large", "org/tiny"))

        await until(up)
        large, _ = await asyncio.to_thread(asked, client, "large", mode="cloud")
        tiny, _ = await asyncio.to_thread(asked, client, "org/tiny", mode="cloud")
        assert large != tiny
        await until(counted)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_devices_help_every_model(client: OpenAI) -> None:
    for model in ("large", "org/tiny"):
        alone, _ = asked(client, model, mode="cloud")
        helped, stats = asked(client, model, mode="speculative", device="desk")
        assert helped == alone, "lossless, whatever the device's vocabulary"
        assert (stats["mode"], stats["device"]) == ("speculative", "desk")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_unknown_names_are_refused_with_those_there_are(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match=r"large.*org/tiny"):
        asked(client, "medium")
