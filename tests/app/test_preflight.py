"""What cannot work is found before anything is started, and said in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tandem.app.preflight import check
from tandem.app.settings import Settings
from tandem.engine import family


def settings(**args: Any) -> Settings:
    return Settings.model_validate(args)


def test_the_default_may_start() -> None:
    check(Settings())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            {"verifier": {"engine": {"kind": "torch", "model": "gpt-9"}}},
            r"^verifier\.engine\.model: .*gpt-9.*target",
        ),
        (
            {"drafter": {"engine": {"kind": "torch", "model": "/nowhere"}}},
            r"^drafter\.engine\.model: .*/nowhere",
        ),
        (
            {"hosts": [{"engine": {"kind": "torch", "model": "gpt-9"}, "devices": [{"name": "phone"}]}]},
            r"^hosts\[0\]\.engine\.model: .*gpt-9",
        ),
        (
            {"hosts": [{"models": ["tiny", "gpt-9"], "devices": [{"name": "phone"}]}]},
            r"^hosts\[0\]\.engine\.model: .*gpt-9",
        ),
        ({"middle": {"replicas": 1, "engine": {"model": "gpt-9"}}}, r"^middle\.engine\.model: .*gpt-9"),
        (
            {"middle": {"replicas": 1, "engine": {"first": 12}}},
            r"^middle\.engine\.first: of 12 layers, devices can have 1 to 11, not 12$",
        ),
        ({"middle": {"engine": {"kind": "vllm", "model": "target"}}}, r"vLLM cannot be a middle"),
        ({"verifier": {"engine": {"kind": "torch", "model": "other"}}}, r"^tokenizer: .*'small'"),
        ({"tokenizer": "gpt-9"}, r"^tokenizer: .*gpt-9"),
        (
            {"endpoint": {"tls": {"certificate": "/nowhere", "key": "/nowhere", "authority": "/nowhere"}}},
            r"^endpoint\.tls: .*No such file",
        ),
    ],
)
def test_what_is_not_there(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(settings(**args))


def test_an_empty_pool_needs_no_model() -> None:
    check(settings(middle={"replicas": 0, "engine": {"model": "gpt-9", "first": 99}}))
    check(settings(expander={"replicas": 0, "engine": {"kind": "torch", "model": "gpt-9"}}))


def test_a_folder_of_another_kind(tmp_path: Path) -> None:
    shutil.copytree(family.path("target"), tmp_path, dirs_exist_ok=True)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(ValueError, match=r"GPT2LMHeadModel; this engine runs LlamaForCausalLM"):
        check(settings(verifier={"engine": {"kind": "torch", "model": str(tmp_path)}}))


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    shutil.copytree(family.path("target"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="^tokenizer: .*tokenizer"):
        check(settings(verifier={"engine": {"kind": "torch", "model": str(tmp_path)}}))
