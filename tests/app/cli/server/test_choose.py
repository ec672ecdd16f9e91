"""Deployments chosen from the models' files and the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tandem.app.cli.server import choose as choosing
from tandem.app.cli.server.choose import Service, choose, kv_tokens
from tandem.app.cli.server.facts import Machine, inspect
from tandem.app.cli.server.up import ANY_QUESTION, CONFIG, QUESTION, UpError, as_yaml, chosen, read, tries
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import LlamacppSettings, ServiceSettings, TorchSettings
from tandem.engine import family
from tandem.engine.packages import VLLM, Package
from tests.engine.gguf.files import byte_level, write

LAPTOP = Machine(cores=4, free_bytes=16e9)


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have llama.cpp, which runs every file, and no vLLM."""
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "tandem.engine.llamacpp.model", SimpleNamespace(check=lambda _: None))
    monkeypatch.setattr(Package, "installed", lambda self: None if self == VLLM else self.version)


def test_folders_run_on_torch_and_what_it_cannot_run_is_named(tmp_path: Path) -> None:
    args = choose("target", drafter="small", device_model="tiny", machine=LAPTOP)
    settings = Settings.model_validate(args)
    assert settings.verifier.engine.kind == settings.drafter.engine.kind == "torch"
    assert settings.hosts[0].devices[0].name == "laptop"
    config = json.loads((family.path("target") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["MambaForCausalLM"]}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"MambaForCausalLM; the torch engine runs .* vLLM may run it"):
        inspect(str(tmp_path), LAPTOP)


def test_a_gguf_file_runs_on_llamacpp(tmp_path: Path) -> None:
    file = write(tmp_path / "small.gguf", byte_level())
    facts = inspect(str(file), LAPTOP)
    assert (facts.engine, facts.weight_bytes) == ("llamacpp", file.stat().st_size)
    assert facts.kv_token_bytes == 2 * 2 * 4 * 16 * 2
    args = choose(str(file), machine=LAPTOP)
    assert args["model"] == "small"
    assert Settings.model_validate(args).verifier.engine.kind == "llamacpp"
    with pytest.raises(ValueError, match="only kind llamacpp runs; engine kind torch needs"):
        choose(str(file), engine="torch", machine=LAPTOP)


def test_own_models_get_what_the_demo_has(tmp_path: Path) -> None:
    """A request that names no mode is answered as is expected to be best, not by the cloud alone."""
    file = write(tmp_path / "small.gguf", byte_level())
    settings = Settings.model_validate(choose(str(file), "small", "tiny", machine=LAPTOP))
    assert settings.router.compares
    assert yaml.safe_load(CONFIG.read_text())["applications"][0]["args"]["router"] == {
        "collaboration": {"name": settings.router.collaboration.name}
    }
    assert settings.ingress_replicas == 1, "a process a role"
    target, device = settings.verifier.engine, settings.hosts[0].engine
    assert isinstance(target, LlamacppSettings)
    assert isinstance(device, TorchSettings)
    assert device.kv_tokens < target.kv_tokens, "a device has one reader"


def test_a_service_may_have_the_models() -> None:
    """With whose tokenizer tokens are counted: the one that is named, else that of the small model on this machine."""
    service = Service("http://127.0.0.1:11434/v1", key_env="KEY")
    settings = Settings.model_validate(choose("big:7b", device_model="tiny", machine=LAPTOP, service=service))
    engine = settings.verifier.engine
    assert isinstance(engine, ServiceSettings)
    assert (engine.model, engine.tokenizer, engine.route, engine.api_key_env) == (
        "big:7b",
        "tiny",
        "chat",
        "KEY",
    )
    assert (list(settings.served), settings.router.compares) == (["big:7b"], True)
    service = Service("http://127.0.0.1:8000/v1", "target", route="completions")
    settings = Settings.model_validate(choose("org/big", machine=LAPTOP, service=service))
    assert (settings.model, settings.verifier.engine.tokenizer, settings.hosts) == ("big", "target", ())
    with pytest.raises(ValueError, match="a service verifies no drafts"):
        choose("big", drafter="small", machine=LAPTOP, service=service)
    with pytest.raises(ValueError, match="--tokenizer is missing"):
        choose("big", machine=LAPTOP, service=Service("http://127.0.0.1:8000/v1"))


def test_several_models_have_one_address(tmp_path: Path) -> None:
    """And share memory and devices; the first one is the default, and has the drafter."""
    files = [write(tmp_path / f"{name}.gguf", byte_level()) for name in ("large", "other")]
    args = choose(str(files[0]), "small", "tiny", machine=LAPTOP, others=[str(files[1])])
    settings = Settings.model_validate(args)
    assert [settings.model_fields_set, list(settings.served)] == [args.keys(), ["large", "other"]]
    assert [model.drafter.exists for model in settings.served.values()] == [True, False]
    assert settings.hosts[0].serves == ()
    engines = [model.verifier.engine for model in settings.served.values()]
    assert [getattr(engine, "model", None) for engine in engines] == [str(file) for file in files]
    plan = read(chosen(args))
    assert (plan.model, plan.mode) == ("large", "speculative")
    facts = inspect(str(files[0]), LAPTOP)
    scarce = choosing.BESIDE_BYTES + 2 * facts.weight_bytes + 5000 * 2 * facts.kv_token_bytes
    args = choose(str(files[0]), machine=Machine(2, scarce), others=[str(files[1])])
    blocks = [model["verifier"]["engine"]["kv_blocks"] for model in args["models"].values()]
    assert blocks == [5000 // 16] * 2, "they share what memory there is"
    (tmp_path / "again").mkdir()
    again = write(tmp_path / "again" / "large.gguf", byte_level())
    with pytest.raises(ValueError, match="several models would be called large"):
        choose(str(files[0]), machine=LAPTOP, others=[str(again)])


def test_models_on_vllm_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "installed", lambda self: self.version)
    with pytest.raises(ValueError, match="2 models on vLLM need a GPU each, and there are 1"):
        choose("target", machine=Machine(16, 64e9, gpus=1), others=["medium"])
    args = choose("target", machine=Machine(16, 64e9, gpus=2), others=["medium"])
    assert [model["verifier"]["gpus"] for model in args["models"].values()] == [1, 1]


def test_a_gpu_means_vllm_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Package, "installed", lambda self: self.version)
    args = choose("target", machine=Machine(16, 64e9, gpus=1))
    assert args["verifier"]["engine"]["kind"] == "vllm"
    assert args["verifier"]["gpus"] == 1
    assert args["drafter"] == {"replicas": 0}


def test_the_kv_cache_is_what_memory_holds() -> None:
    facts = inspect("target", LAPTOP)
    assert facts.weight_bytes == pytest.approx(4 * 5_264_064, rel=0.01), "float32 of bfloat16 files"
    assert facts.kv_token_bytes == 2 * 12 * 3 * 32 * 4
    assert kv_tokens([facts], LAPTOP) == choosing.MOST_KV_TOKENS
    scarce = Machine(2, choosing.BESIDE_BYTES + facts.weight_bytes + 5000 * facts.kv_token_bytes)
    assert kv_tokens([facts], scarce) == 5000
    with pytest.raises(ValueError, match=r"1.0 GB of memory are free, and 1.5 GB are needed: 1.5 GB beside"):
        kv_tokens([facts], Machine(2, 1e9))


def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="runs GGUF files, and .* is none"):
        choose("target", engine="llamacpp", machine=LAPTOP)
    with pytest.raises(OSError, match="nothing"):
        choose(str(tmp_path / "nothing.gguf"), machine=LAPTOP)


def test_the_suggestions_fit_the_model(tmp_path: Path) -> None:
    plan = read(chosen(choose("target", machine=LAPTOP)))
    assert (plan.question, plan.mode) == (QUESTION, "cloud")
    with pytest.raises(UpError, match="unknown"):
        read(chosen({"unknown": 1}))
    file = tmp_path / "config.yaml"
    file.write_text(as_yaml(chosen(choose("target", drafter="small", machine=LAPTOP))))
    assert read(file).mode == "speculative"
    assert ANY_QUESTION != QUESTION
    base = write(tmp_path / "base.gguf", byte_level(template=None))
    plan = read(chosen(choose(str(base), machine=LAPTOP)))
    assert not plan.chats
    assert "/v1/completions" in tries(plan)[0]
    assert not any("chat" in line for line in tries(plan))
