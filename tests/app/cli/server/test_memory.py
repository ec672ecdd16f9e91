"""Memory that a deployment takes, before it starts."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.app.cli.server.facts import Machine, inspect
from tandem.app.cli.server.memory import check_memory, in_use, shown
from tandem.app.cli.server.processes import Process, myself
from tandem.app.settings import Settings
from tandem.engine import family
from tests.engine.gguf.files import byte_level, write

HERE = Machine(cores=2, free_bytes=1e9)
TOKEN = 2 * 12 * 3 * 32 * 4
"""Bytes of a token's keys and values in the target of the embedded family, in float32."""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a folder with a model that is not the family's by name."""
    return str(shutil.copytree(family.path("target"), tmp_path / "own"))


def settings(engine: dict[str, Any], **more: Any) -> Settings:
    return Settings.model_validate(
        {"verifier": {"engine": {"kind": "torch"} | engine} | more, "drafter": {"replicas": 0}}
    )


def test_what_fits_is_not_refused(folder: str) -> None:
    check_memory(settings({"model": folder, "kv_blocks": 4096}), HERE)
    check_memory(settings({"model": "target", "kv_blocks": 10**6}), HERE)
    check_memory(settings({"kind": "null"}), HERE)
    check_memory(settings({"model": folder, "kv_blocks": 10**6}, gpus=1), HERE)
    check_memory(settings({"model": folder, "memory_fraction": 0.5}), HERE)


@pytest.mark.parametrize(
    ("engine", "more", "says"),
    [
        ({"kv_blocks": 8000}, {}, rf"{8000 * 16 * TOKEN / 1e9 + 0.02:.1f} GB of verifier \(1 × .*own\)"),
        ({"kv_blocks": 4096}, {"replicas": 3}, r"verifier \(3 × "),
        (
            {"kv_blocks": 4096},
            {"autoscaling": {"min_replicas": 3, "max_replicas": 4}},
            r"verifier \(3 × ",
        ),
        ({"host_memory": {"blocks": 8000}}, {}, r"1.0 GB of memory are free, and 3.0 GB are needed"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_arithmetic(
    folder: str, engine: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        check_memory(settings({"model": folder} | engine, **more), HERE)


def test_all_engines_of_a_deployment_count(folder: str) -> None:
    one = {"kind": "torch", "model": folder, "kv_blocks": 3000}
    alone = Settings.model_validate({"verifier": {"engine": one}, "drafter": {"replicas": 0}})
    check_memory(alone, HERE)
    device = {"name": "edge", "engine": one, "devices": [{"name": "phone"}]}
    middle = {"replicas": 1, "engine": {"model": folder, "first": 3, "kv_blocks": 3000}}
    every = {"verifier": {"engine": one}, "drafter": {"engine": one}, "middle": middle, "hosts": [device]}
    with pytest.raises(ValueError, match=r"verifier .* drafter .* middle .* hosts\[0\] .*fewer kv_blocks"):
        check_memory(Settings.model_validate(every), HERE)


def test_a_change_takes_what_it_adds(folder: str) -> None:
    """The old engines are there until the new ones answer."""
    engine = {"kind": "torch", "model": folder, "kv_blocks": 3000}
    one = 3000 * 16 * TOKEN
    device = {"name": "edge", "engine": engine, "devices": [{"name": "phone"}]}
    running = Settings.model_validate(
        {"verifier": {"engine": engine}, "drafter": {"replicas": 0}, "hosts": [device]}
    )
    weights = inspect(folder, HERE).weight_bytes
    check_memory(running, Machine(2, one + weights), running)
    with pytest.raises(ValueError, match=r"verifier \(1 × [^)]*\)\. Choose"):
        check_memory(running, Machine(2, one + weights - 1), running)
    verifier = {"engine": engine, "surge_percent": 0}
    replaced = Settings.model_validate({"verifier": verifier, "drafter": {"replicas": 0}, "hosts": [device]})
    check_memory(replaced, Machine(2, 0), running)
    grown = {"engine": engine | {"kv_blocks": 6000}, "surge_percent": 0}
    replaced = Settings.model_validate({"verifier": grown, "drafter": {"replicas": 0}, "hosts": [device]})
    check_memory(replaced, Machine(2, one), running)
    with pytest.raises(ValueError, match=r"verifier"):
        check_memory(replaced, Machine(2, one - 1), running)


def test_a_gguf_file_counts_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "tandem.engine.llamacpp.model", SimpleNamespace(check=lambda _: None))
    monkeypatch.setattr("tandem.engine.packages.Package.installed", lambda self: self.version)
    file = write(tmp_path / "small.gguf", byte_level())
    facts = inspect(str(file), HERE)
    needed = facts.weight_bytes + 512 * 16 * facts.kv_token_bytes
    wanted = settings({"kind": "llamacpp", "model": str(file)})
    check_memory(wanted, Machine(2, needed))
    with pytest.raises(ValueError, match=r"small\.gguf"):
        check_memory(wanted, Machine(2, needed - 1))


def test_what_is_in_use_is_what_the_system_counts() -> None:
    """Deployments are told by the names of Ray's processes; a process that has ended counts nothing."""
    status = Path("/proc/self/status").read_text()
    resident = 1024.0 * int(
        next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1]
    )
    used = in_use([myself(), Process(2**22, 0)])
    assert list(used) == ["Ray"]
    assert 0.3 * resident < used["Ray"] < 1.2 * resident, "without what it shares with others"
    used = {"Ray": 0.5e9, "Verifier": 1.5e9, "Router": 0.1e9, "Access": 0.14e9}
    assert shown(used) == "2.2 GB (Verifier 1.5, Ray 0.5, other replicas 0.2)"
