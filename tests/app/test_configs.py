"""The checked-in Serve YAMLs: both hold, fit their machines, and answer when they are deployed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import torch
import yaml
from openai import OpenAI

from tandem.app.cli.server.local_ray import TOKEN, LocalRay, free_port, logs_of
from tandem.app.cli.server.up import CONFIG, RECORD, UpError, read
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import VllmSettings
from tandem.engine import family
from tandem.engine.vllm.config import check_options
from tests.app.cli.started import started
from tests.cluster.certificate import make_certificate
from tests.conftest import Running

GPU = CONFIG.with_name("gpu.yaml")
TARGET, DRAFTER = "/models/llama-3.1-8b-instruct", "/models/llama-3.2-1b-instruct"

HAS_GPU = torch.cuda.is_available()
SMALL: dict[str, float] = {
    "replicas": 1,
    "ingress_replicas": 1,
    "cpus": 0.1,
    "threads": 1,
    "kv_blocks": 64,
    "max_sessions": 8,
    "token_budget": 512,
    "max_model_len": 1024,
    "gpu_memory_utilization": 0.3,
}
"""Sizes for a machine like this one."""
SMALL |= {"gpus": 0.5} if HAS_GPU else {}


def arguments(deployment: dict[str, Any]) -> dict[str, Any]:
    (application,) = deployment["applications"]
    return application["args"]


def replaced(value: Any, files: dict[str, str]) -> Any:
    """Return the settings with small sizes, and with available files in place of missing ones."""
    if isinstance(value, dict):
        return {key: SMALL.get(key, replaced(item, files)) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, files) for item in value]
    return files.get(value, value) if isinstance(value, str) else value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Single settings by their dotted paths."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{path}.{key}" if path else f"{key}")
    else:
        yield path, value


def changed(before: Any, after: Any) -> set[str]:
    """Dotted paths of the settings that differ, or that only one has."""
    old, new = dict(leaves(before)), dict(leaves(after))
    return {path for path in old | new if old.get(path, ...) != new.get(path, ...)}


def deployed(dashboard: str, folder: Path) -> dict[str, Any]:
    """The application as Serve says that it was asked for."""
    headers = {"Authorization": f"Bearer {(folder / TOKEN).read_text()}"}
    reply = httpx.get(f"{dashboard}/api/serve/applications/", headers=headers, timeout=30)
    return reply.raise_for_status().json()["applications"]["tandem"]["deployed_app_config"]


def check_answers(address: str, model: str, drafting: str) -> None:
    """The cloud alone, its drafter and a device that drafts say the same; drafting: the device."""
    said = {}
    with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for mode in ({"mode": "cloud"}, {"mode": "speculative"}, {"mode": "speculative", "device": drafting}):
            answer = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Tell me about the town of Marworth."}],
                temperature=0,
                max_tokens=40,
                extra_body={"tandem": mode},
            )
            assert answer.model_extra is not None
            stats = answer.model_extra["tandem"]["stats"]
            assert stats["mode"] == mode["mode"]
            assert mode["mode"] == "cloud" or stats["modes"]["speculative"]["rounds"] > 0
            assert stats["replans"] == 0
            said[str(mode)] = answer.choices[0].message.content
    assert all(said.values())
    assert len(set(said.values())) == 1 or HAS_GPU, "whose bfloat16 depends on the batch"


@pytest.mark.parametrize("file", [CONFIG, GPU], ids=lambda file: file.name)
def test_it_says_what_the_settings_know(file: Path) -> None:
    deployment = yaml.safe_load(file.read_text())
    assert deployment["http_options"]["host"] == "127.0.0.1"
    given = arguments(deployment)
    settings = Settings.model_validate(given)
    assert settings.model_fields_set == given.keys()
    assert settings.verifier.replicas
    assert settings.drafter.replicas
    assert settings.hosts
    engines = [
        settings.verifier.engine,
        settings.drafter.engine,
        *(e for h in settings.hosts for e in h.engines),
    ]
    assert [getattr(engine, "scheduling_warning", None) for engine in engines] == [None] * len(engines)


@pytest.mark.vllm
@pytest.mark.parametrize("pool", ["verifier", "drafter"])
def test_vllm_knows_the_options_of_the_gpu_file(pool: str) -> None:
    engine = getattr(Settings.model_validate(arguments(yaml.safe_load(GPU.read_text()))), pool).engine
    assert isinstance(engine, VllmSettings)
    assert engine.options
    check_options(engine.options)


@pytest.mark.vllm
def test_a_model_folder_that_is_missing_is_named_in_one_line() -> None:
    with pytest.raises(UpError) as raised:
        read(GPU)
    assert (
        str(raised.value) == f"{GPU}: args: verifier.engine.model: there is no folder or GGUF file {TARGET}"
    )


@pytest.mark.parametrize(
    ("pool", "weights", "layers", "kv_heads", "head_width", "working_gb"),
    [("verifier", 8.03e9, 32, 8, 128, 4), ("drafter", 1.236e9, 16, 8, 64, 3)],
)
def test_the_gpu_file_fits_a_gpu_of_80_gb(
    pool: str, weights: float, layers: int, kv_heads: int, head_width: int, working_gb: float
) -> None:
    """Room by the formula of docs/operations.md, with Llama 3.1 8B and Llama 3.2 1B in bfloat16."""
    whole = Settings.model_validate(arguments(yaml.safe_load(GPU.read_text())))
    settings, engine = whole.pools[pool], whole.engine(pool, whole)
    assert isinstance(engine, VllmSettings)
    assert engine.kv_blocks is not None
    assert engine.window == (8 if pool == "verifier" else 0)
    cache = engine.kv_blocks * engine.block_size * 2 * layers * kv_heads * head_width * 2
    share = engine.options["gpu_memory_utilization"]
    taken = (weights * 2 + cache) / 1e9 + working_gb
    assert 0.8 * share * 80 < taken <= share * 80
    assert share < settings.gpus, "or its neighbours on the GPU have no room"
    assert engine.max_sessions * (engine.window + 1) <= (engine.token_budget or 0), "and room for prompts"


@pytest.mark.timeout(240)  # it may be the first that needs Ray
def test_the_local_file_answers(application: Running, cluster: LocalRay) -> None:
    asked = arguments(yaml.safe_load(CONFIG.read_text()))
    found = deployed(cluster.dashboard, cluster.folder)["args"]
    by_the_fixture = {"endpoint.token", "ledger.path", "router.collaboration.name"}
    assert changed(asked, found) == by_the_fixture
    check_answers(application.address, asked["model"], "laptop")


@pytest.mark.slow  # two processes of Ray's
@pytest.mark.usefixtures("cluster")
@pytest.mark.timeout(240)
def test_who_asks_for_no_gpu_sees_none() -> None:
    """Or device hosts would take memory that vLLM has found free."""
    (application,) = yaml.safe_load(GPU.read_text())["applications"]
    machine = {"CUDA_VISIBLE_DEVICES": "0"}

    @ray.remote
    def seen() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    for given, expected in ((machine, "0"), (machine | application["runtime_env"]["env_vars"], "")):
        assert ray.get(seen.options(num_cpus=0.1, runtime_env={"env_vars": given}).remote()) == expected


@pytest.mark.vllm
@pytest.mark.alone  # two engines at once leave nothing of a small machine to others' time limits
@pytest.mark.timeout(600)
def test_the_gpu_file_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tiny models and sizes, and the other settings as they are. On a machine without GPUs, Ray is told of two."""
    if not HAS_GPU:
        monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 2}')
    certificate, key = make_certificate(tmp_path)
    files = {
        TARGET: str(family.path("target")),
        DRAFTER: str(family.path("small")),
        "/etc/tandem/node.pem": str(certificate),
        "/etc/tandem/node.key": str(key),
        "/etc/tandem/authority.pem": str(certificate),
        "/var/lib/tandem/ledger.sqlite": str(tmp_path / "ledger.sqlite"),
    }
    asked = yaml.safe_load(GPU.read_text())
    given = replaced(asked, files) | {"http_options": asked["http_options"] | {"port": free_port()}}
    file = tmp_path / "gpu.yaml"
    file.write_text(yaml.safe_dump(given))
    with started(tmp_path, file) as process:
        record = json.loads((tmp_path / RECORD).read_text())
        found = deployed(record["dashboard"], Path(record["folder"]))
        (application,) = asked["applications"]
        differing = changed(application, {key: found[key] for key in application})
        names = {path.rpartition(".")[2] for path in differing}
        assert names <= SMALL.keys() | {"model", "certificate", "key", "authority", "path"}
        assert "args.verifier.engine.model" in differing
        check_answers(record["address"], arguments(asked)["model"], "laptop")
        logs = logs_of(Path(record["folder"])) / "serve"
        for pool in ("Verifier", "Drafter"):
            (log,) = logs.glob(f"replica_tandem_{pool}_*.log")
            assert f"place={'cuda' if HAS_GPU else 'cpu'}" in log.read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
