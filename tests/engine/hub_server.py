"""A small Hugging Face hub for tests: what huggingface_hub calls of it, and its faults."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from tests.engine.gguf.files import byte_level, write
from tests.engine.text.test_tokenizer import CONFIG, DEFINITION

TOKEN = "hf_right"
LARGE = (".safetensors", ".gguf")
"""Endings of files that the hub keeps in LFS, by their SHA-256."""

WEIGHTS = bytes(range(256)) * 400
FOLDER = {
    "config.json": b'{"architectures": ["OtherForCausalLM"]}',
    "tokenizer.json": DEFINITION.encode(),
    "tokenizer_config.json": json.dumps(CONFIG).encode(),
    "generation_config.json": b"{ }",
    "model.safetensors": WEIGHTS,
}
OTHERS = {
    "README.md": b"#",
    "pytorch_model.bin": WEIGHTS,
    "consolidated.safetensors": WEIGHTS,
    "onnx/model.onnx": WEIGHTS,
    "original/model.safetensors": WEIGHTS,
}
"""Files beside FOLDER that are not needed."""
PATH = re.compile(
    r"(?:/api/models)?/(?P<repository>[^/]+/[^/]+)"
    r"(?:/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<file>.*))?)?"
)


def commit_of(repository: str) -> str:
    """Return the only commit of a repository."""
    return hashlib.sha1(repository.encode()).hexdigest()


@dataclass
class Hub:
    """repositories: files by path, by "org/name".
    gated: repositories whose files are given only to TOKEN.
    broken_at: bytes after which a file of that path breaks off, once.
    silent_at: bytes after which the server sends no more of a file of that path, once.
    refused: paths of files that the server fails to send.
    status: HTTP status with which everything is refused; None: nothing is.
    damaged: paths of files of which other bytes are sent.
    requests: what was asked: method, path, and Range.
    """

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    broken_at: dict[str, int] = field(default_factory=dict)
    silent_at: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    status: int | None = None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def ranges(self, file: str) -> list[str | None]:
        """Return the ranges of a file that were asked for; None for all of it."""
        return [
            asked for method, path, asked in self.requests if method == "GET" and path.endswith(f"/{file}")
        ]

    def fetched(self) -> list[str]:
        """Return the files that were asked for, in order of their names."""
        asked = [path for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]
        return sorted(path.partition("/resolve/")[2].partition("/")[2] for path in asked)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on this machine until the context is left."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        if self.hub.status is not None:
            self._refuse(self.hub.status, "")
            return
        match = PATH.fullmatch(path)
        files = match and self.hub.repositories.get(match["repository"])
        if match is None or files is None:
            self._refuse(401, "RepoNotFound")
        elif match["revision"] not in (None, "main", "v1", commit_of(match["repository"])):
            self._refuse(404, "RevisionNotFound")
        elif match["what"] == "tree":
            self._json([_entry(name, data) for name, data in files.items()])
        elif match["what"] != "resolve":
            self._json(
                {
                    "id": match["repository"],
                    "sha": commit_of(match["repository"]),
                    "siblings": [{"rfilename": name} for name in files],
                }
            )
        elif match["repository"] in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(403, "GatedRepo")
        elif match["file"] not in files:
            self._refuse(404, "EntryNotFound")
        else:
            self._file(match["file"], files[match["file"]], commit_of(match["repository"]))

    def _file(self, name: str, data: bytes, commit: str) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-")
        assert asked
        start = int(asked[1])
        if self.command == "GET" and name in self.hub.refused:
            self._refuse(503, "")
            return
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_checksum(name, data)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.hub.damaged:
            data = bytes(byte ^ 1 for byte in data)
        if (end := self.hub.broken_at.pop(name, None)) is not None:
            self.wfile.write(data[start:end])
            self.close_connection = True
        elif (end := self.hub.silent_at.pop(name, None)) is not None:
            self.wfile.write(data[start:end])
            self.rfile.read(1)  # returns when the client has gone
            self.close_connection = True
        else:
            self.wfile.write(data[start:])

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _checksum(name: str, data: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": _checksum(name, data)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": _checksum(name, data), "size": len(data), "pointerSize": 130}
    return entry


@contextmanager
def reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a hub with models, and let huggingface_hub use it with an empty cache below `folder`."""
    gguf = write(folder / "a.gguf", byte_level()).read_bytes()
    names = ("a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf")
    repositories = {
        "org/whole": FOLDER | OTHERS,
        "org/terms": dict(FOLDER),
        "org/other": dict(FOLDER),
        "org/gguf": {name: gguf + bytes(number) for number, name in enumerate(names)},
        "org/bin": {"config.json": b"{}", "pytorch_model.bin": WEIGHTS},
        "org/old": {name: data for name, data in FOLDER.items() if name != "tokenizer.json"},
    }
    repositories["org/gguf"] |= {"README.md": b"#", "mmproj-Q4_K_M.gguf": gguf}
    with serving(Hub(repositories, gated={"org/terms"})) as running:
        for name, value in (
            ("ENDPOINT", running.url),
            ("HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}"),
            ("HF_HUB_CACHE", str(folder / "hub")),
            ("HF_HUB_OFFLINE", False),
        ):
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "")
        monkeypatch.setenv("TANDEM_CACHE", str(folder / "cache"))
        yield running
