"""Cached checksums of files are recomputed as soon as a file may have changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.engine.config import EngineConfig
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split import checksum_cache as remembered
from tandem.engine.torch.split.runner import load_middle
from tests.engine.torch.split_parts import model_folder


class Computed:
    """The files' text; times: how often it was asked for."""

    def __init__(self, *files: Path) -> None:
        self.files, self.times = files, 0

    def __call__(self) -> str:
        self.times += 1
        return "".join(file.read_text() for file in self.files)

    def asked(self, what: str = "text") -> str:
        return remembered.remembered(what, self.files, self)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and accept files that have just been made."""
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SETTLED_NS", -(10**9))
    return tmp_path / "cache"


@pytest.fixture
def computed(tmp_path: Path) -> Computed:
    files = tmp_path / "a", tmp_path / "b"
    for file in files:
        file.write_text(file.name)
    return Computed(*files)


@pytest.mark.usefixtures("cache")
def test_it_is_computed_once(computed: Computed) -> None:
    assert [computed.asked() for _ in range(3)] == ["ab"] * 3
    assert computed.times == 1
    computed.asked("text, reversed")
    assert computed.times == 2


def longer(file: Path) -> None:
    file.write_text("longer")


def as_long(file: Path) -> None:
    """Change a file's content and restore its times, as far as they can be set."""
    was = file.stat()
    file.write_text("c")
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))


def replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_text("d")
    shutil.copystat(file, other)
    other.replace(file)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("change", [longer, as_long, replaced])
def test_a_change_is_noticed(computed: Computed, change: Callable[[Path], None]) -> None:
    computed.asked()
    before = computed.files[1].stat().st_ctime_ns
    while computed.files[1].stat().st_ctime_ns == before:  # a clock as coarse as the file system's
        change(computed.files[1])
    assert computed.asked() == "a" + computed.files[1].read_text() != "ab"
    assert computed.times == 2


@pytest.mark.parametrize("broken", [b"", b"{", b'{"files": 5}', b'{"files": [], "value": "x"}', b"\xff"])
def test_a_broken_cache_is_ignored(cache: Path, computed: Computed, broken: bytes) -> None:
    computed.asked()
    (file,) = cache.iterdir()
    file.write_bytes(broken)
    assert computed.asked() == "ab"
    assert computed.times == 2
    assert computed.asked() == "ab"
    assert computed.times == 2, "and mended"


def test_a_cache_that_cannot_be_written_is_none(cache: Path, computed: Computed) -> None:
    cache.write_text("a file where the folder would be")
    assert [computed.asked() for _ in range(2)] == ["ab"] * 2
    assert computed.times == 2


def test_what_changes_meanwhile_or_has_just_is_not_kept(
    cache: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer_now = Computed(*computed.files)

    def compute() -> str:
        text = longer_now()
        longer(computed.files[0])
        return text

    assert remembered.remembered("text", computed.files, compute) == "ab"
    assert computed.asked() == "longerb"
    assert computed.times == 1
    shutil.rmtree(cache)
    monkeypatch.undo()
    monkeypatch.setenv("TANDEM_CACHE", str(cache))
    longer(computed.files[1])
    computed.asked()
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
async def test_a_middle_is_read_for_its_checksum_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, computed = model_folder("llama-untied", tmp_path / "model"), list[Path]()
    checksum = bundle.checksum

    def counted(folder: Path) -> str:
        computed.append(folder)
        return checksum(folder)

    monkeypatch.setattr(bundle, "checksum", counted)
    for _ in range(2):
        engine = load_middle(model, 1, EngineConfig(kv_blocks=16))
        assert engine.info.split is not None
        assert engine.info.split.checksum == checksum(model)
        await engine.close()
    assert computed == [model]
    config = json.loads((model / "config.json").read_text()) | {"rms_norm_eps": 1e-3}
    (model / "config.json").write_text(json.dumps(config))
    assert bundle.describe(model, 1).checksum == checksum(model) != engine.info.split.checksum
