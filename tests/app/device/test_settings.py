"""Settings of `tandem device` from its command line and its file; and that it needs no Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from tandem.app.cli.device import model_settings, run, service_settings, settings_of
from tandem.app.cli.main import cli
from tandem.app.client.http import ClientError
from tandem.app.device import program
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.wire.frames import AlreadyConnected, Unauthorized
from tandem.cluster.wire.tls import fingerprint
from tandem.deployments.pools.engines import ServiceSettings, TorchSettings
from tandem.engine import family
from tandem.engine.base import EngineError
from tandem.engine.split.base import DESCRIPTION
from tandem.engine.torch.split import bundle
from tests.cluster.certificate import make_certificate
from tests.engine.hub_server import reached

LEAST: dict[str, Any] = {"connect": "127.0.0.1:8443", "key": Path("laptop.key")}


def test_it_needs_no_ray() -> None:
    """The program is for laptops and phones."""
    code = "import sys, app.device.program, app.cli.device; print('ray' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text(
        yaml.safe_dump({"connect": "a:1", "key": "k", "bundle": "/there", "split": {"wire": "int8"}})
    )
    found = settings_of(file, {"connect": "b:2", "key": None, "bundle": None, "listen": None})
    assert (found.connect, found.split.wire) == ("b:2", "int8")  # type: ignore[attr-defined]  # a field of each mode's
    assert found.key == tmp_path / "k", "as seen from the file"
    assert found.bundle == Path("/there")


def test_the_files_of_its_certificate_are_seen_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    tls = {"certificate": "cert.pem", "key": "/etc/key.pem"}
    file.write_text(yaml.safe_dump({"connect": "a:1", "key": "k", "api": {"tls": tls}}))
    shown = settings_of(file, {}).api.tls
    assert shown is not None
    assert (shown.certificate, shown.key) == (tmp_path / "cert.pem", Path("/etc/key.pem"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"key": Path("k")}, "connect is missing: give --connect"),
        ({"connect": "a:1"}, "key is missing: give --key"),
        (LEAST | {"connect": "nowhere"}, "connect: "),
        (LEAST | {"listen": "0.0.0.0:8001"}, "listen: the API is for this machine alone, not for 0.0.0.0"),
        (LEAST | {"listen": "example.org:8001"}, "not for example.org"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ClientError) as refused:
        settings_of(None, said)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_port_alone_is_one_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[str] = []
    monkeypatch.setattr("tandem.app.cli.device.run", lambda settings: listening.append(settings.listen))
    asked = ["device", "--connect", "a:1", "--key", "k", "--port", "8005"]
    assert CliRunner().invoke(cli, asked).exit_code == 0
    assert listening == ["127.0.0.1:8005"]
    refused = CliRunner().invoke(cli, [*asked, "--listen", "127.0.0.1:8006"])
    assert (refused.exit_code, listening) == (1, ["127.0.0.1:8005"])
    assert "leave out one of --listen and --port" in refused.stderr


@pytest.mark.parametrize("text", ["- a list", "key: [", "{split: {wire: float64}, connect: 'a:1', key: k}"])
def test_a_file_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    file = tmp_path / "device.yaml"
    file.write_text(text)
    with pytest.raises(ClientError):
        settings_of(file, {})


@pytest.mark.parametrize(
    "wrong",
    [
        {"profile": "no such profile"},
        {"window": {"name": "no such policy"}},
        {"dispatch": {"name": "no such policy"}},
        {"migration": {"name": "buffered", "parameters": {"caution": 0}}},
        {"split": {"chunking": {"name": "no such policy"}}},
        {"split": {"drafting": {"name": "threshold", "parameters": {"eta": 7}}}},
        {"unheard": "of"},
    ],
)
def test_settings_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DeviceProgram.model_validate(LEAST | wrong)


def test_a_key_is_shown_to_this_machine_alone_or_over_tls(tmp_path: Path) -> None:
    file = tmp_path / "laptop.key"
    file.write_text("tandem-secret\n")

    def program(**said: Any) -> DeviceProgram:
        return DeviceProgram.model_validate(LEAST | {"key": file} | said)

    assert program().tls() is None
    assert program(connect="localhost:8443").tls() is None
    assert program(connect="cloud.example:8443").tls() is not None
    assert program(connect="10.0.0.1:8443").tls() is not None
    certificate, key = make_certificate(tmp_path)
    trusting = program(authority=certificate).tls()
    assert trusting is not None
    assert trusting.check_hostname
    with pytest.raises(ValueError, match="no certificate"):
        program(authority=key).tls()
    with pytest.raises(OSError, match="missing"):
        program(authority=tmp_path / "missing").tls()


def test_a_key_may_name_the_gateways_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And may be given itself, in place of a file; then no message shows it."""
    monkeypatch.chdir(tmp_path)
    certificate, _ = make_certificate(tmp_path)
    text = f"tandem-secret.{fingerprint(certificate)}"
    (tmp_path / "laptop.key").write_text(f"{text}\n")
    for key, place in (("laptop.key", "laptop.key"), (text, "--key")):
        program = DeviceProgram.model_validate(LEAST | {"key": key})
        assert (program.secret(), program.key_place) == ("tandem-secret", place)
        pinned = program.tls()
        assert pinned is not None, "on this machine, too"
        assert not pinned.check_hostname, "it may be dialled by any name"
    (tmp_path / "empty.key").write_text("two words")
    with pytest.raises(ValueError, match="holds no key"):
        DeviceProgram.model_validate(LEAST | {"key": "empty.key"}).secret()


@pytest.mark.parametrize(
    "refusal", [Unauthorized("it was revoked"), AlreadyConnected("another device is connected")]
)
def test_why_the_cloud_does_not_let_it_in(refusal: EngineError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def serve(*_: object) -> None:
        raise refusal

    monkeypatch.setattr("tandem.app.cli.device._serve", serve)
    with pytest.raises(ClientError, match=f"laptop.key: {refusal}"):
        run(DeviceProgram.model_validate(LEAST))


def test_a_model_is_two_ends_or_the_device_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ends").mkdir()
    (tmp_path / "ends" / DESCRIPTION).touch()
    assert model_settings([]) == {}
    for each in (tmp_path, tmp_path / "ends"):
        assert model_settings([str(each)]) == {"bundle": each}
        with pytest.raises(ClientError, match="one split model"):
            model_settings([str(each), str(each)])
    with reached(tmp_path, monkeypatch) as hub:
        folder = family.path("tiny")
        hub.repositories["org/whole"] = {file.name: file.read_bytes() for file in folder.iterdir()}
        for model in ("org/whole", str(folder.resolve())):
            for ends in (None, tmp_path / "ends"):
                models = [model] if ends is None else [str(ends), model]
                found = DeviceProgram.model_validate(LEAST | model_settings(models))
                assert isinstance(found.engine, TorchSettings)
                assert (found.engine.model, found.bundle) == (model, ends)
        with pytest.raises(ClientError, match="no model of that name"):
            model_settings(["org/none"])


def test_a_model_may_be_that_of_a_server_that_runs_already(tmp_path: Path) -> None:
    url = "http://127.0.0.1:11434/v1"
    service = service_settings("openai", url, "small")
    found = DeviceProgram.model_validate(LEAST | model_settings([str(tmp_path), "qwen2.5:0.5b"], service))
    assert isinstance(found.engine, ServiceSettings)
    assert (found.engine.base_url, found.engine.model, found.bundle) == (url, "qwen2.5:0.5b", tmp_path)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("vllm", "http://127.0.0.1:1/v1", "small"), "--engine vllm"),
        (("openai", None, "small"), "give --base-url"),
        (("openai", "http://127.0.0.1:1/v1", None), "give --tokenizer"),
    ],
)
def test_what_a_server_needs_is_asked_for(given: tuple[str, str | None, str | None], why: str) -> None:
    with pytest.raises(ClientError, match=why):
        service_settings(*given)
    with pytest.raises(ClientError, match="give --model"):
        model_settings([], service_settings("openai", "http://127.0.0.1:1/v1", "small"))


async def test_the_familys_model_does_not_stand_in_for_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with the ends of a model of another vocabulary has to be given a model of its own."""
    bundle.write(family.path("small"), 1, tmp_path / "ends")
    (tmp_path / "key").write_text("secret")
    said = {
        "connect": "localhost:1",
        "key": tmp_path / "key",
        "listen": "127.0.0.1:0",
        "bundle": tmp_path / "ends",
    }
    monkeypatch.setattr(program, "_tokenizer", lambda engine: SimpleNamespace(vocabulary="another"))
    monkeypatch.setattr(program, "build_engine", lambda engine: pytest.fail("loaded"))
    with pytest.raises(ValueError, match="small is split, .*--model MODEL beside"):
        async with program.running(DeviceProgram.model_validate(said)):
            pass


def test_the_model_is_looked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.app.cli.device._serve", lambda *_: pytest.fail("started"))
    engine = {"kind": "torch", "model": str(tmp_path / "nowhere")}
    with pytest.raises(ClientError, match="there is no folder or GGUF file .*nowhere"):
        run(DeviceProgram.model_validate(LEAST | {"engine": engine}))


@pytest.mark.parametrize("said", ["", "\n", "two words\n"])
def test_a_file_without_a_key(said: str, tmp_path: Path) -> None:
    file = tmp_path / "laptop.key"
    file.write_text(said)
    program = DeviceProgram.model_validate(LEAST | {"key": file})
    with pytest.raises(ValueError, match="holds no key"):
        program.secret()
    file.write_text("tandem-abc\n")
    assert program.secret() == "tandem-abc"
