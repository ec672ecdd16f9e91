"""Fetching of public files: downloads, preparation, and the check of what came out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import httpx

from tandem.benchmarks.data.sources import PREPARATIONS, Download, PublicFile

MOST_BYTES = 32 * 2**20
"""Bytes of one download at most."""
TIMEOUT = httpx.Timeout(30.0)


class CannotFetch(Exception):
    """Why a file could not be had, for people."""


class Offline(CannotFetch):
    """No file can be had: the server is out of reach."""


class Fetcher:
    """Fetches files into a folder, each download once.

    address: server of the repositories' files.
    """

    def __init__(self, folder: Path, address: str, client: httpx.Client) -> None:
        self._folder, self._address, self._client = folder, address, client
        self._had: dict[Download, bytes] = {}

    def fetch(self, file: PublicFile, downloads: Iterable[Download]) -> None:
        """Write a file that is not there yet. Raises CannotFetch, also if it comes out as another one."""
        parts = [(each.path, self._content(each)) for each in downloads]
        try:
            content = PREPARATIONS[file.prepare](parts)
        except (ValueError, LookupError, OSError, EOFError) as error:
            raise CannotFetch(f"{file.file}: what was fetched is of another form ({error})") from None
        if not file.matches(content):
            raise CannotFetch(f"{file.file}: what was fetched has another checksum; it is not kept")
        self._write(self._folder / file.file, content)

    def _content(self, download: Download) -> bytes:
        if download not in self._had:
            self._had[download] = self._get(download.url(self._address))
        return self._had[download]

    def _get(self, url: str) -> bytes:
        content = bytearray()
        try:
            with self._client.stream("GET", url, timeout=TIMEOUT, follow_redirects=True) as reply:
                if reply.status_code != httpx.codes.OK:
                    raise CannotFetch(f"{url}: HTTP {reply.status_code}")
                for part in reply.iter_bytes():
                    content += part
                    if len(content) > MOST_BYTES:
                        raise CannotFetch(f"{url}: more than {MOST_BYTES} bytes")
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            raise Offline(f"{url} is out of reach ({error})") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise CannotFetch(f"{url}: {error or type(error).__name__}") from None
        return bytes(content)

    def _write(self, path: Path, content: bytes) -> None:
        beside = path.with_name(f"{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content)
            os.replace(beside, path)
        except OSError as error:
            raise CannotFetch(f"{path} cannot be written: {error.strerror}") from None
