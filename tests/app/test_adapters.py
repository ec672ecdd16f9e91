"""LoRA adapters over HTTP, on vLLM and real Ray: each is a model for clients, and for metrics."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI

from tests.applications import deployed, until
from tests.conftest import Running
from tests.engine.vllm.lora import write_adapter

pytestmark = [pytest.mark.nightly, pytest.mark.vllm, pytest.mark.timeout(400)]

MODEL, ADAPTER = "tandem", "poems"
QUESTION = "Tell me about the town of Marworth."


@pytest.fixture(scope="module")
def address(application: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of an application with a model and an adapter, and a drafter that knows of neither."""
    adapter = write_adapter(tmp_path_factory.mktemp("adapter"))
    engine = {"kind": "vllm", "model": "target", "adapters": {ADAPTER: str(adapter)}}
    settings = {
        "model": MODEL,
        "verifier": {"engine": engine | {"kv_blocks": 64, "max_sessions": 4, "window": 4, "threads": 1}},
        "drafter": {"engine": {"kind": "torch", "model": "small", "threads": 1}},
    }
    with deployed(settings, "adapters", application) as address:
        yield address


def asked(address: str, model: str, **wishes: str) -> str:
    """Return a model's greedy answer."""
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=200) as client:
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=24,
            extra_body={"tandem": wishes},
        )
    assert answer.model == model
    return answer.choices[0].message.content or ""


def test_an_adapter_is_listed_with_its_parent(address: str) -> None:
    with OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        listed = {model.id: (model.model_extra or {})["parent"] for model in client.models.list().data}
    assert listed == {MODEL: None, ADAPTER: MODEL}


async def test_base_and_adapter_answer_by_name_in_every_mode_and_are_counted(address: str) -> None:
    said = {model: asked(address, model, mode="cloud") for model in (MODEL, ADAPTER)}
    assert said[MODEL] != said[ADAPTER]
    assert all(said.values())
    for model, text in said.items():
        assert asked(address, model, mode="speculative") == text, "drafts change nothing"
    async with httpx.AsyncClient() as http:

        async def counted() -> bool:
            text = (await http.get(f"{address}/metrics")).text
            series = 'vllm:generation_tokens_total{model_name="%s",origin="cloud"}'
            return all(series % model in text for model in said)

        await until(counted)
