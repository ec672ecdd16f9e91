"""Models that take part in answers, as their cards tell them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import yaml

from tandem.app.parts import part
from tandem.app.served import parts
from tandem.app.settings import Settings
from tandem.deployments.pools.engines import NullSettings, ServiceSettings, TorchSettings
from tandem.deployments.pools.models import on_disk
from tandem.engine import family
from tests.engine.gguf.files import byte_level, write

DEFAULT = Path(__file__).parents[2] / "app" / "configs" / "local.yaml"


def test_the_parts_of_what_up_serves() -> None:
    settings = Settings.model_validate(yaml.safe_load(DEFAULT.read_text())["applications"][0]["args"])
    target, drafter, device = parts(settings, "tandem")
    assert (target.role, target.model, target.parameters, target.demo) == (
        "target",
        "target",
        5_264_064,
        True,
    )
    assert target.bytes == (family.path("target") / "model.safetensors").stat().st_size
    assert (drafter.role, drafter.model, drafter.parameters) == ("drafter", "small", 1_205_184)
    assert (device.role, device.devices) == ("device", ("laptop", "pixel-7-pro", "xiaomi-14", "jetson-orin"))


def test_the_middle_of_a_split_model_is_the_target() -> None:
    settings = Settings.model_validate({"drafter": {"replicas": 0}, "middle": {"replicas": 1}})
    assert [each.role for each in parts(settings, "tandem")] == ["target"]


def test_a_copy_under_the_same_name_is_no_demo(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    shutil.copytree(family.path("target"), folder)
    found = on_disk(str(folder))
    assert found is not None
    assert (found.name, found.parameters, found.embedded) == ("target", 5_264_064, False)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    packed = on_disk(str(folder))
    assert packed is not None
    assert packed.parameters is None


def test_parameters_of_a_gguf_file(tmp_path: Path) -> None:
    file = write(tmp_path / "some-Q4.gguf", byte_level())
    found = on_disk(str(file))
    assert found is not None
    assert (found.name, found.bytes, found.embedded) == ("some-Q4", file.stat().st_size, False)
    assert found.parameters == 64 * 8 + 64 * 2


def test_models_that_are_not_here_have_no_size() -> None:
    assert on_disk("org/not-fetched") is None
    gone = part("device", TorchSettings(model="/no/folder"))
    assert (gone.model, gone.parameters, gone.bytes) == ("folder", None, None), "no path of the server's"
    service = ServiceSettings.model_validate(
        {"kind": "openai", "model": "gpt", "base_url": "http://127.0.0.1:1/v1", "tokenizer": "target"}
    )
    assert part("target", service).model == "gpt"
    assert part("target", NullSettings(kind="null")).model == "null"
