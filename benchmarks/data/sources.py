"""The public files that benchmarks read, with the addresses that they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import yaml

from tandem.benchmarks.data import prepare
from tandem.benchmarks.data.prepare import Prepare

ADDRESS = "https://raw.githubusercontent.com"
"""Server of the repositories' files, by repository, commit and path."""

RENAMED = {"paths": "from", "size": "bytes"}
"""Fields of a PublicFile that have another name in sources.yaml."""
PREPARATIONS: Mapping[str, Prepare] = {
    function.__name__: function
    for function in (
        prepare.as_it_is,
        prepare.unpacked,
        prepare.medians,
        prepare.attention_medians,
        prepare.chosen_inputs,
        prepare.arrivals,
        prepare.peak,
        prepare.dsd_trace,
        prepare.dsd_client_trace,
        prepare.lengths,
        prepare.measured_run,
        prepare.wifi,
        prepare.services,
        prepare.samples,
    )
}


class Download(msgspec.Struct, frozen=True):
    """One file of a repository at a commit."""

    repository: str
    commit: str
    path: str

    def url(self, address: str = ADDRESS) -> str:
        """Return its address. address: server to take it from."""
        return f"{address.rstrip('/')}/{self.repository}/{self.commit}/{self.path}"


class PublicFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=RENAMED):
    """A file that benchmarks read.

    file: path below TANDEM_DATA.
    size: bytes.
    sha256: its checksum, in hexadecimal.
    paths: files of the repository that it is made of.
    prepare: name of the preparation that makes it.
    versions: commits of which each is read; none: the repository's.
    """

    file: str
    size: int
    sha256: str
    paths: tuple[str, ...]
    prepare: str = prepare.as_it_is.__name__
    versions: tuple[str, ...] = ()

    def matches(self, content: bytes) -> bool:
        """Whether this is the file's content."""
        return hashlib.sha256(content).hexdigest() == self.sha256

    def state(self, folder: Path) -> str:
        """Return "here", "missing" or "differs", below this folder."""
        try:
            return "here" if self.matches((folder / self.file).read_bytes()) else "differs"
        except FileNotFoundError:
            return "missing"


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public repository with data.

    repository: owner and name.
    commit: version that the files are taken from.
    licence: of the data, an SPDX identifier.
    note: what the data are.
    """

    repository: str
    commit: str
    licence: str
    files: tuple[PublicFile, ...]
    note: str = ""

    def downloads(self, file: PublicFile) -> Iterator[Download]:
        """Yield what a file is made of, in order."""
        for commit in file.versions or (self.commit,):
            for path in file.paths:
                yield Download(self.repository, commit, path)


def repositories() -> tuple[Repository, ...]:
    """Return all repositories of sources.yaml."""
    text = Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), tuple[Repository, ...])
