"""Measured speeds of models and devices, kept on disk for a new router's first decisions."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

logger = logging.getLogger("ray.serve")

VERSION = 1
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e6)]


class Profiles(msgspec.Struct, forbid_unknown_fields=True):
    """Speeds that an earlier router measured, as in the file.

    version: of the file's form.
    target_token_s: seconds that the target took for a token; 0: not known.
    devices: seconds that an answer takes for each of its tokens, by device and model.
    """

    version: int = VERSION
    target_token_s: Seconds = 0.0
    devices: dict[str, dict[str, Seconds]] = {}


def read(path: Path) -> Profiles:
    """Load the speeds of a file; empty, with a line in the log, if it cannot be read or is of another version."""
    try:
        profiles = msgspec.json.decode(path.read_bytes(), type=Profiles)
        if profiles.version == VERSION:
            return profiles
        why = f"version {profiles.version}, not {VERSION}"
    except FileNotFoundError:
        return Profiles()  # the first time
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = str(error)
    logger.warning("the profiles in %s are ignored: %s", path, why)
    return Profiles()


def write(path: Path, profiles: Profiles) -> None:
    """Write the file, whole or not at all; a line in the log says why it fails."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(profiles)))
        beside.replace(path)
    except OSError as error:
        logger.warning("the profiles cannot be written to %s: %s", path, error)
        with suppress(OSError):
            beside.unlink()
