"""Cache of checksums of files, valid while the files are unchanged: reading all of a large model takes minutes.

A file counts as unchanged while its path, size, inode and both of its times are, the second of which cannot be set.
The entries lie in a cache folder; if that is broken, or cannot be written to, they are computed again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from tandem.engine.cache import folder

SETTLED_NS = 2_000_000_000
"""Files that were changed more recently may change once more with the same times, as coarse as those are."""


class _Remembered(msgspec.Struct):
    """value: computed of files in this state."""

    files: list[tuple[str, int, int, int, int]]
    value: str


def remembered(what: str, files: Iterable[Path], compute: Callable[[], str]) -> str:
    """Return the cached or newly computed value of `compute` for these files. what: names the value and its
    computation."""
    paths = sorted(file.resolve() for file in files)
    before = _state(paths)
    named = hashlib.sha256("\n".join([what, *map(str, paths)]).encode()).hexdigest()
    with suppress(OSError, RuntimeError, msgspec.MsgspecError):
        known = msgspec.json.decode((folder() / f"{named}.json").read_bytes(), type=_Remembered)
        if known.files == before:
            return known.value
    began_ns = time.time_ns()
    value = compute()
    settled = all(began_ns - changed_ns > SETTLED_NS for *_, changed_ns in before)
    if settled and _state(paths) == before:
        with suppress(OSError, RuntimeError):
            _write(folder() / f"{named}.json", msgspec.json.encode(_Remembered(before, value)))
    return value


def _state(paths: list[Path]) -> list[tuple[str, int, int, int, int]]:
    found = [(path, path.stat()) for path in paths]
    return [(str(path), s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns) for path, s in found]


def _write(file: Path, data: bytes) -> None:
    """All of it at once: others may be reading, or writing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        made.write_bytes(data)
        made.replace(file)
    finally:
        made.unlink(missing_ok=True)
