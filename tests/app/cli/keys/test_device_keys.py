"""`tandem keys device` against a server with a null model: the secret is in one file, or the key is not there."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.deployments.access.keys import Role, digest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, url) -> Path:
    """An empty folder, in which the commands run."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TANDEM_URL", url)
    return folder


def device(*arguments: str):
    return CliRunner().invoke(cli, ["keys", "device", *arguments])


def listed() -> list[dict]:
    return json.loads(device("list", "--json").stdout)


def holder(backend, secret: str):
    return backend.treasury.caller(digest(secret))


def test_make_writes_the_secret_to_a_file_and_says_what_is_next(backend, here):
    assert device("list").stdout == "No device has a key.\n"
    before = os.umask(0)
    try:
        made = device("make", "pixel-9", "--requests", "60", "--mode", "split", "--days", "90")
    finally:
        os.umask(before)
    assert made.exit_code == 0, made.stderr
    file = here / "pixel-9.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_text().removesuffix("\n")
    caller = holder(backend, secret)
    assert (caller.name, caller.role, caller.terms.requests_per_minute) == ("pixel-9", Role.DEVICE, 60)
    assert caller.terms.modes == ("split",)
    (key,) = listed()
    assert (key["name"], key["id"], key["role"]) == ("pixel-9", caller.account, "device")
    assert "pixel-9.key" in made.stdout
    assert made.stdout.endswith("    tandem device --connect HOST:PORT --key pixel-9.key\n")
    assert secret not in made.stdout
    table = device("list").stdout
    assert "pixel-9" in table
    assert secret not in table


def test_its_file_may_be_elsewhere(backend, here):
    (here / "my keys").mkdir()
    made = device("make", "laptop", "--file", "my keys/one")
    assert "--key 'my keys/one'" in made.stdout
    assert holder(backend, (here / "my keys" / "one").read_text().strip()).name == "laptop"
    assert not (here / "laptop.key").exists()


def test_a_dash_is_stdout_with_the_secret_alone(backend, here):
    made = device("make", "laptop", "--file", "-")
    assert (made.exit_code, made.stderr, len(made.stdout.splitlines())) == (0, "", 1)
    assert holder(backend, made.stdout.strip()).name == "laptop"
    rotated = device("rotate", "laptop", "--file", "-")
    assert len(rotated.stdout.splitlines()) == 1
    assert holder(backend, rotated.stdout.strip()).name == "laptop"
    assert not list(here.iterdir())


@pytest.mark.parametrize("linked", [False, True])
def test_no_file_is_overwritten(here, linked):
    file = here / "laptop.key"
    if linked:
        file.symlink_to(here / "nowhere")
    else:
        file.write_text("precious")
    refused = device("make", "laptop")
    assert refused.exit_code == 1
    assert "laptop.key is there already" in refused.stderr
    assert "--file" in refused.stderr
    assert listed() == []
    assert file.is_symlink() if linked else file.read_text() == "precious"
    assert not (here / "nowhere").exists()


def test_a_file_that_cannot_be_made_makes_no_key(here):
    refused = device("make", "laptop", "--file", "no/such/folder.key")
    assert (refused.exit_code, "cannot be written: No such file" in refused.stderr) == (1, True)
    assert listed() == []


def test_a_key_that_is_refused_leaves_no_file(here):
    device("make", "laptop")
    again = device("make", "laptop", "--file", "other.key")
    assert (again.exit_code, "the device 'laptop' has a key" in again.stderr) == (1, True)
    assert [file.name for file in here.iterdir()] == ["laptop.key"]


@pytest.mark.parametrize("name", ["../laptop", "any", "verifier", ""])
def test_a_name_that_is_none_is_wrong_usage(here, name):
    assert device("make", name).exit_code == 2
    assert not list(here.iterdir())
    assert listed() == []


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_secret_that_cannot_be_written_revokes_its_key(backend, here, monkeypatch):
    monkeypatch.setattr("tandem.app.cli.terminal.secret.os.fsync", full)
    failed = device("make", "laptop")
    assert failed.exit_code == 1
    assert "laptop.key cannot be written: No space left on device" in failed.stderr
    assert "was revoked again" in failed.stderr
    assert listed() == []
    assert not list(here.iterdir())


def test_a_key_that_cannot_be_revoked_then_is_named(backend, monkeypatch):
    monkeypatch.setattr("tandem.app.cli.terminal.secret.os.fsync", full)

    async def gone(id: str) -> None:
        raise RuntimeError

    monkeypatch.setattr(backend, "revoke_key", gone)
    failed = device("make", "laptop")
    (key,) = listed()
    assert f"{key['id']} must be revoked, as its secret could not be kept" in failed.stderr
    assert "cannot be written" in failed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_stdout_that_cannot_be_written_revokes_it_too():
    command = [sys.executable, "-c", "from tandem.app.cli.main import main; main()"]
    root = str(Path(__file__).parents[4])
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as no_room:
        failed = subprocess.run(
            [*command, "keys", "device", "make", "laptop", "--file", "-"],
            check=False,
            stdout=no_room,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**buffered, "PYTHONPATH": root},
        )
    assert failed.returncode == 1, failed.stderr
    revoked, why = failed.stderr.splitlines()
    assert "was revoked again" in revoked
    assert why == "tandem: stdout cannot be written: No space left on device"
    assert listed() == []


def test_rotate_by_name_or_id(backend, here):
    device("make", "laptop")
    (key,) = listed()
    old = (here / "laptop.key").read_text().strip()
    refused = device("rotate", "laptop")
    assert "laptop.key is there already" in refused.stderr
    assert holder(backend, old).name == "laptop", "nothing has changed"
    kept = device("rotate", "laptop", "--file", "second.key", "--grace", "60")
    assert "holds for 60 s more" in kept.stdout
    assert "--key second.key" in kept.stdout
    second = (here / "second.key").read_text().strip()
    assert holder(backend, old) == holder(backend, second)
    changed = device("rotate", key["id"], "--file", "third.key")
    assert "opens nothing any more" in changed.stdout
    assert holder(backend, second).role is Role.OPERATOR, "it is as if no key were shown"
    assert holder(backend, (here / "third.key").read_text().strip()).name == "laptop"


def test_a_new_secret_that_cannot_be_written_is_said_to_be_lost(here, monkeypatch):
    device("make", "laptop")
    monkeypatch.setattr("tandem.app.cli.terminal.secret.os.fsync", full)
    failed = device("rotate", "laptop", "--file", "second.key")
    assert failed.exit_code == 1
    assert "rotate the key once more" in failed.stderr
    assert [file.name for file in here.iterdir()] == ["laptop.key"]
    assert [key["name"] for key in listed()] == ["laptop"]


def test_revoke_by_name_or_id():
    for name in ("laptop", "phone"):
        device("make", name)
    laptop, phone = listed()
    assert device("revoke", "laptop").stdout == f"laptop's key, {laptop['id']}, is revoked.\n"
    assert [key["name"] for key in listed()] == ["phone"]
    assert device("revoke", phone["id"]).exit_code == 0
    assert listed() == []
    unknown = device("revoke", "laptop")
    assert (unknown.exit_code, "no device 'laptop' has a key" in unknown.stderr) == (1, True)


def test_keys_of_others_are_none_of_its_business(monkeypatch):
    keys = ["keys", "make", "ada", "--role", "operator", "--json"]
    device("make", "laptop")
    assert (
        "No key opens the API: this machine alone is answered."
        in CliRunner().invoke(cli, ["keys", "list"]).stdout
    )
    boss = json.loads(CliRunner().invoke(cli, keys).stdout)
    monkeypatch.setenv("TANDEM_API_KEY", boss["secret"])
    assert [key["name"] for key in listed()] == ["laptop"]
    for command in ("revoke", "rotate"):
        assert "no device 'ada' has a key" in device(command, "ada").stderr
        assert device(command, boss["id"]).exit_code == 1
    shown = CliRunner().invoke(cli, ["keys", "list"], env={"COLUMNS": "200"}).stdout
    assert "device" in shown
    assert "operator" in shown
    assert "this machine alone" not in shown
    assert CliRunner().invoke(cli, ["keys", "make", "phone", "--role", "device"]).exit_code == 2


def test_with_a_devices_key_the_command_line_is_told_what_it_is_for(here, monkeypatch):
    device("make", "laptop")
    monkeypatch.setenv("TANDEM_API_KEY", (here / "laptop.key").read_text().strip())
    refused = device("list")
    assert (refused.exit_code, "it opens the gateway, not the API (HTTP 403)" in refused.stderr) == (1, True)
