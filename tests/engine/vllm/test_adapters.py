"""LoRA adapters on vLLM: a request with one gets the tokens of the model with its weights added."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from tandem.engine import family
from tandem.engine.base import Engine, InvalidRequest, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.torch.engine import load as load_torch
from tandem.engine.vllm.config import adapter_rank
from tests.engine.vllm.conftest import load_engine
from tests.engine.vllm.lora import ALPHA, RANK, write_adapter
from tests.engine_contract import session

PROMPT = list(range(40, 60))
GREEDY = Sampling(max_tokens=16, ignore_eos=True)
ADAPTED = Sampling(max_tokens=16, ignore_eos=True, adapter="mine")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def merged(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the model with the adapter's weights in its own."""
    folder = tmp_path_factory.mktemp("merged") / "merged"
    shutil.copytree(family.path("target"), folder)
    weights = {name: w.float() for name, w in load_file(folder / "model.safetensors").items()}
    lora = load_file(adapter / "adapter_model.safetensors")
    for name in weights:
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in lora:
            low = lora[f"{module}.lora_B.weight"] @ lora[f"{module}.lora_A.weight"]
            weights[name] += ALPHA / RANK * low
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def adapted(adapter: Path) -> AsyncIterator[Engine]:
    made = load_engine(adapters={"mine": str(adapter)})
    yield made
    await made.close()


async def tokens(engine: Engine, sampling: Sampling) -> list[int]:
    async with session(engine, PROMPT, sampling) as s:
        return [token async for part in s.generate() for token in part.ids]


@pytest.mark.vllm
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="package")
async def test_an_adapter_is_part_of_the_weights(adapted: Engine, merged: Path) -> None:
    reference = load_torch(merged, EngineConfig(kv_blocks=64), dtype="float32")
    whole = await tokens(reference, GREEDY)
    await reference.close()
    plain = await tokens(adapted, GREEDY)
    assert plain != whole
    assert await tokens(adapted, ADAPTED) == whole
    assert await tokens(adapted, GREEDY) == plain, "the same prompt's KV cache is another with an adapter"
    async with session(
        adapted, PROMPT, ADAPTED
    ) as s:  # drafts of whatever model are judged by the adapted one
        verdict = await s.verify([*whole[:3], plain[3] if plain[3] != whole[3] else (whole[3] + 1) % 1000])
        assert verdict.accepted == 3
        said = list(verdict.ids)
        while len(said) < len(whole):
            said += (await s.verify([])).ids
    assert said == whole
    with pytest.raises(InvalidRequest, match="no adapter 'other'"):
        await adapted.open(PROMPT, Sampling(adapter="other"))


def test_folders_are_checked(adapter: Path, tmp_path: Path) -> None:
    assert adapter_rank(str(adapter)) == RANK
    config = tmp_path / "adapter_config.json"
    for said, why in (
        (None, "is no adapter's folder"),
        ({"r": 8}, "is no adapter's folder"),
        ({"peft_type": "IA3", "r": 8}, "kind IA3"),
        ({"peft_type": "LORA", "r": 1024}, "rank 1024"),
        ({"peft_type": "LORA", "r": 8}, "no adapter_model.safetensors"),
    ):
        if said is not None:
            config.write_text(json.dumps(said))
        with pytest.raises(ValueError, match=why):
            adapter_rank(str(tmp_path))
