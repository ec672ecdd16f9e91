"""`tandem benchmark data`, with a server of files on this machine."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tandem.benchmarks.__main__ import main
from tandem.benchmarks.data import command
from tandem.benchmarks.data.sources import PREPARATIONS, PublicFile, Repository, repositories
from tandem.benchmarks.paths import DATA

QUESTIONS = b'{"prompt": "Why?"}\n'


@dataclass
class Files:
    """A server's files by path. asked: paths that were asked for."""

    address: str
    content: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Files]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.asked.append(self.path)
            content = files.content.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        files = Files(f"http://127.0.0.1:{http.server_port}")
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield files
        http.shutdown()
        thread.join()


def public(file: str, content: bytes, prepare: str = "as_it_is") -> PublicFile:
    checksum = hashlib.sha256(content).hexdigest()
    return PublicFile(file, len(content), checksum, (f"raw/{Path(file).name}",), prepare)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the data, with two files to fetch."""
    found = Repository(
        "owner/name",
        "c0ffee",
        "MIT",
        (public("prompts/plain.jsonl", QUESTIONS), public("prompts/packed.jsonl", QUESTIONS, "unpacked")),
    )
    monkeypatch.setattr(command, "repositories", lambda: (found,))
    monkeypatch.setattr(command, "DATA", tmp_path)
    return tmp_path


def serve(server: Files) -> None:
    server.content = {
        "/owner/name/c0ffee/raw/plain.jsonl": QUESTIONS,
        "/owner/name/c0ffee/raw/packed.jsonl": gzip.compress(QUESTIONS),
    }


def fetch(server: Files, *more: str) -> None:
    main(["data", "--fetch", "--address", server.address, *more])


def test_where_files_come_from_is_shown_without_a_network(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "plain.jsonl").write_bytes(QUESTIONS)
    main(["data"])
    said = capsys.readouterr().out
    for part in ("MIT", "owner/name/c0ffee/raw/plain.jsonl", hashlib.sha256(QUESTIONS).hexdigest()):
        assert part in said
    assert "prompts/plain.jsonl: here; MIT" in said
    assert "prompts/packed.jsonl: missing; MIT, 19 bytes, made by prepare.unpacked" in said
    assert f"1 of 2 files are missing in {folder} (TANDEM_DATA); --fetch fetches them" in said


def test_what_is_missing_is_fetched_once(
    folder: Path, server: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(server)
    fetch(server)
    assert "all 2 files are in" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (folder / "prompts").iterdir()} == {
        "plain.jsonl": QUESTIONS,
        "packed.jsonl": QUESTIONS,
    }
    asked = len(server.asked)
    fetch(server)
    assert len(server.asked) == asked == 2, "they are there"


def test_only_some(folder: Path, server: Files) -> None:
    serve(server)
    fetch(server, "--only", "prompts/pl")
    assert [path.name for path in (folder / "prompts").iterdir()] == ["plain.jsonl"]
    with pytest.raises(SystemExit, match="no file begins with 'nothing'"):
        main(["data", "--only", "nothing"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"other", "plain.jsonl: what was fetched has another checksum; it is not kept"),
        (None, "raw/plain.jsonl: HTTP 404"),
        (b"x" * (33 * 2**20), "more than 33554432 bytes"),
    ],
    ids=["other", "gone", "huge"],
)
def test_what_does_not_come_right_is_not_kept(
    folder: Path, server: Files, content: bytes | None, says: str
) -> None:
    serve(server)
    plain = "/owner/name/c0ffee/raw/plain.jsonl"
    server.content = {p: c for p, c in server.content.items() if p != plain}
    if content is not None:
        server.content[plain] = content
    with pytest.raises(SystemExit, match=says):
        fetch(server)
    assert [path.name for path in (folder / "prompts").iterdir()] == ["packed.jsonl"], "the others are had"


def test_a_file_of_another_form(folder: Path, server: Files) -> None:
    serve(server)
    server.content["/owner/name/c0ffee/raw/packed.jsonl"] = b"no gzip"
    with pytest.raises(SystemExit, match=r"packed.jsonl: what was fetched is of another form"):
        fetch(server)


def test_a_file_that_is_there_is_never_overwritten(folder: Path, server: Files) -> None:
    serve(server)
    (folder / "prompts").mkdir()
    mine = folder / "prompts" / "plain.jsonl"
    mine.write_bytes(b"mine")
    with pytest.raises(SystemExit, match=r"plain.jsonl is there with another checksum: remove it"):
        fetch(server)
    assert mine.read_bytes() == b"mine"


def test_without_a_network_it_says_what_to_do(folder: Path) -> None:
    with pytest.raises(SystemExit, match="out of reach(.|\n)*name it in TANDEM_DATA"):
        main(["data", "--fetch", "--address", "http://127.0.0.1:1"])
    assert list(folder.iterdir()) == []


def test_every_source_can_be_made_and_has_an_address() -> None:
    files = [file for at in repositories() for file in at.files]
    assert len({file.file for file in files}) == len(files)
    assert {file.prepare for file in files} == PREPARATIONS.keys()
    for at in repositories():
        assert at.licence in {"MIT", "Apache-2.0", "CC-BY-4.0"}
        for file in at.files:
            assert all(len(each.commit) == 40 for each in at.downloads(file))
            assert not Path(file.file).is_absolute()
            assert ".." not in file.file


@pytest.mark.skipif(not DATA.is_dir(), reason="no data here")
def test_the_data_here_are_those_of_the_sources() -> None:
    files = [file for at in repositories() for file in at.files]
    assert [file.file for file in files if file.state(DATA) == "differs"] == []
