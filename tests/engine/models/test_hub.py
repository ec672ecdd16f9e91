"""Models by their names on a hub."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tandem.deployments.pools.models import model_folder, model_path
from tandem.engine.models.hub import HubError, HubModel, fetch, find
from tandem.engine.models.model_folder import UnsupportedModel
from tests.engine.hub_server import FOLDER, TOKEN, WEIGHTS, Hub, commit_of, reached


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with reached(tmp_path, monkeypatch) as hub:
        yield hub


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/name", HubModel("org/name")),
        ("org/na.me-2@v1/x", HubModel("org/na.me-2", revision="v1/x")),
        ("org/name/x-Q4.gguf", HubModel("org/name", "x-Q4.gguf")),
        ("org/name/q4/x.gguf@v1", HubModel("org/name", "q4/x.gguf", revision="v1")),
        ("org/name:Q4_K_M@v1", HubModel("org/name", quantization="Q4_K_M", revision="v1")),
        *[
            (name, None)
            for name in ("target", "./a/b", "/a/b", "~/a", "a/b/c", "../b", "models/x.gguf", "a/b@")
        ],
    ],
)
def test_names(name: str, model: HubModel | None) -> None:
    assert HubModel.parse(name) == model
    assert model is None or str(model) == name


def test_a_folder_is_fetched_once_with_what_is_needed(server: Hub) -> None:
    folder = model_folder("org/whole")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FOLDER
    assert server.fetched() == sorted(FOLDER)
    server.requests.clear()
    assert model_folder("org/whole") == model_folder("org/whole@main") == folder
    assert server.requests == []
    assert fetch(HubModel("org/whole")) == folder
    assert server.fetched() == []
    assert folder.name == commit_of("org/whole")


def test_a_local_folder_comes_first(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "whole").mkdir(parents=True)
    assert model_folder("org/whole") == Path("org/whole")
    assert server.requests == []


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/gguf/a-Q4_K_M.gguf", ["a-Q4_K_M.gguf"]),
        ("org/gguf:q4_k_m@v1", ["a-Q4_K_M.gguf"]),
        ("org/gguf:Q8_0", ["a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"]),
    ],
)
def test_a_gguf_file(server: Hub, name: str, files: list[str]) -> None:
    path = model_path(name)
    assert path.name == files[0]
    assert server.fetched() == files
    assert (model_folder(name) / "tokenizer.json").exists()
    server.requests.clear()
    assert model_path(name) == path
    assert server.requests == []


def test_a_broken_connection_is_resumed(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)  # bytes that are kept at once
    server.broken_at["model.safetensors"] = 70_000
    assert (model_folder("org/whole") / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges("model.safetensors") == [None, "bytes=70000-"]


def part_of(folder: Path, data: bytes) -> Path:
    """Return where the part of a large file lies that has arrived."""
    name = hashlib.sha256(data).hexdigest()
    return folder / "hub" / "models--org--whole" / "blobs" / f"{name}.incomplete"


def test_what_ctrl_c_has_broken_off_is_resumed(server: Hub, tmp_path: Path) -> None:
    server.silent_at["model.safetensors"] = 70_000
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a background job ignores it
        "from huggingface_hub import constants; from tandem.engine.models.hub import HubModel, fetch; "
        "constants.DOWNLOAD_CHUNK_SIZE = 10_000; fetch(HubModel('org/whole'))"
    )
    environment = os.environ | {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path / "hub")}
    environment |= {"HF_HUB_ETAG_TIMEOUT": "90", "HF_HUB_DOWNLOAD_TIMEOUT": "90"}  # the machine may be busy
    environment["HF_HUB_OFFLINE"] = "0"  # vLLM's import forbids it to all that follows in a process
    part = part_of(tmp_path, WEIGHTS)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (part.exists() and part.stat().st_size == 70_000):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate()[1]
    assert find(HubModel("org/whole")) is None
    assert (model_folder("org/whole") / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges("model.safetensors") == [None, "bytes=70000-"]
    assert not part.exists()


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (bytes(70_000), ["bytes=70000-", None]),
        (bytes(len(WEIGHTS)), [None]),
        (bytes(len(WEIGHTS) + 1), [None]),
        (WEIGHTS, []),
    ],
    ids=["damaged", "whole and damaged", "too long", "whole"],
)
def test_what_an_earlier_attempt_has_left_is_verified(
    server: Hub, tmp_path: Path, part: bytes, asked: list[str | None]
) -> None:
    file = part_of(tmp_path, WEIGHTS)
    file.parent.mkdir(parents=True)
    file.write_bytes(part)
    assert (model_folder("org/whole") / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges("model.safetensors") == asked


def test_files_that_have_arrived_are_kept(server: Hub) -> None:
    server.refused.add("tokenizer.json")
    with pytest.raises(HubError, match=r"org/whole: http://127\S+ answered 503; start again to go on"):
        model_folder("org/whole")
    assert find(HubModel("org/whole")) is None
    server.refused.clear()
    server.requests.clear()
    assert (model_folder("org/whole") / "model.safetensors").read_bytes() == WEIGHTS
    assert "tokenizer.json" in server.fetched()
    assert "model.safetensors" not in server.fetched()


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_arrives_damaged_is_deleted(server: Hub, file: str) -> None:
    server.damaged.add(file)
    with pytest.raises(HubError, match=f"{file} arrived damaged"):
        model_folder("org/whole")
    assert find(HubModel("org/whole")) is None
    server.damaged.clear()
    assert (model_folder("org/whole") / file).read_bytes() == FOLDER[file]


def test_terms_have_to_be_accepted(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HubError, match=f"accept them at {server.url}/org/terms, and set HF_TOKEN"):
        model_folder("org/terms")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert (model_folder("org/terms") / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (429, "start again"), (500, "start again")]
)
def test_a_hub_that_refuses(server: Hub, status: int, hint: str) -> None:
    server.status = status
    with pytest.raises(HubError, match=f"answered {status}; {hint}"):
        model_folder("org/whole")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("org/none", HubError, "no folder org/none here, and no model of that name at http"),
        ("org/whole@v9", HubError, "org/whole has no revision 'v9'"),
        ("org/gguf", UnsupportedModel, "name one, as in org/gguf/a-Q4_K_M.gguf, a-Q8"),
        ("org/gguf/b.gguf", UnsupportedModel, "no such file; it has a-Q4_K_M.gguf, a-Q8"),
        ("org/gguf:Q5_0", UnsupportedModel, "no such file; it has a-Q4_K_M.gguf, a-Q8"),
        ("org/whole/a.gguf", UnsupportedModel, "no GGUF file at all, but README.md, config.json"),
        ("org/bin", UnsupportedModel, "no [*].safetensors file; it has: config.json, pytorch_model.bin"),
        ("org/old", UnsupportedModel, "org/old has no tokenizer.json; it has: config.json"),
    ],
)
def test_what_a_hub_does_not_have(server: Hub, name: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        model_folder(name)
    assert server.fetched() == []


def test_offline(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids"):
        model_folder("org/whole")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = model_folder("org/whole")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.requests.clear()
    assert model_folder("org/whole") == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(HubError, match="is not whole in .*HF_HUB_OFFLINE forbids"):
        model_folder("org/whole")
    assert server.requests == []


@pytest.mark.parametrize("begun", [False, True])
def test_without_a_network(server: Hub, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """Nothing is tried again and again; what has arrived before makes no difference."""
    if begun:
        server.refused.add("model.safetensors")
        with pytest.raises(HubError):
            model_folder("org/whole")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"waits {seconds} s to try again"))
    with pytest.raises(HubError, match="http://127.0.0.1:9 cannot be reached"):
        model_folder("org/whole")


@pytest.mark.timeout(30)
def test_a_hub_that_never_answers(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(HubError, match=r"cannot be reached \(.*timed out\)"):
            model_folder("org/whole")


def test_a_model_that_another_program_fetched(server: Hub) -> None:
    """An index names the files with weights, where the repository's list is not known."""
    index = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
    parts = {"model-1.safetensors": WEIGHTS, "model-2.safetensors": WEIGHTS}
    server.repositories["org/whole"] = FOLDER | parts | {"model.safetensors.index.json": index}
    del server.repositories["org/whole"]["model.safetensors"]
    folder = model_folder("org/whole")
    for tree in (folder.parents[1] / "trees").iterdir():
        tree.unlink()
    assert find(HubModel("org/whole")) == folder
    (folder / "model-2.safetensors").unlink()
    assert find(HubModel("org/whole")) is None
