"""Destination of a device key's secret, checked before the key is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.app.client.http import ClientError

STDOUT = Path("-")


def abandon_stdout() -> None:
    """Discard what is left in a stdout that failed, so that it does not fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def place_for(file: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a secret to stdout for "-", otherwise to a new file that its owner alone can read.

    After a failure within, the file is removed. Raises ClientError, as does the function.
    """
    if file == STDOUT:
        yield _say
        return
    descriptor = _new(file)
    try:
        yield lambda secret: _write(descriptor, file, secret)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _new(file: Path) -> int:
    """Create the file and return its descriptor."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ClientError(
            f"{file} is there already, and no file is overwritten: name another one with --file"
        ) from None
    except OSError as error:
        raise _refused(file, error) from None


def _write(descriptor: int, file: Path, secret: str) -> None:
    try:
        with open(descriptor, "w", encoding="ascii", closefd=False) as out:
            print(secret, file=out)
        os.fsync(descriptor)  # it is nowhere else
    except OSError as error:
        raise _refused(file, error) from None


def _say(secret: str) -> None:
    try:
        print(secret, flush=True)
    except OSError as error:
        abandon_stdout()
        raise _refused("stdout", error) from None


def _refused(where: object, error: OSError) -> ClientError:
    return ClientError(f"{where} cannot be written: {error.strerror}")
