"""A PostgreSQL server of the tests' own, as a user without rights, behind a socket in its folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

USER, GROUP = "nobody", "nogroup"
"""PostgreSQL does not run for root."""
START_S = 60.0


def program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs; skip the test where it is not installed."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (str(installed[-1]) if installed else None)
    if found is None:
        pytest.skip("PostgreSQL's server is not installed (Debian's package postgresql has it)")
    return found


class Server:
    """folder: of its data and its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._databases = folder, 0
        self._user, self._group = (USER, GROUP) if os.getuid() == 0 else (None, None)
        if self._user is not None:
            shutil.chown(folder, self._user, self._group)
        self._run("initdb", "-D", self._data, "-U", "tandem", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def start(self) -> None:
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, as a crash does."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def database(self) -> str:
        """Return the address of a new database."""
        self._databases += 1
        name = f"ledger{self._databases}"
        self.sql("postgres", f"CREATE DATABASE {name} STRATEGY file_copy")
        return f"postgresql://tandem@/{name}?host={self.folder}"

    def sql(self, database: str, statement: str) -> None:
        """Execute statements of the test's own in a database."""
        address = f"postgresql://tandem@/{database}?host={self.folder}"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[arg-type]

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, name: str, *words: str | Path) -> None:
        with tempfile.TemporaryFile("w+") as log:  # a pipe would stay open as long as the server
            done = subprocess.run(
                [program(name), *map(str, words)],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=START_S,
                check=False,
                user=self._user,
                group=self._group,
            )
            log.seek(0)
            assert done.returncode == 0, log.read()


@contextmanager
def running() -> Iterator[Server]:
    """Yield a server while it runs; skip the test where none can."""
    program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="tandem-pg-"))
    try:
        server = Server(folder)
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
