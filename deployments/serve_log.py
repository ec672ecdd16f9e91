"""Serve's log, for the lines of all modules of a replica."""

from __future__ import annotations

import logging

from ray import serve
from ray.serve.exceptions import RayServeException


def join_serves_log() -> None:
    """Send the lines of every module to the log of this process's replica, in its format; elsewhere, do nothing.

    Modules that know nothing of Ray have loggers of their own names. Their lines would be bare text on stderr, without
    the fields that JSON has.
    """
    try:
        serve.get_replica_context()
    except RayServeException:
        return
    logging.getLogger("tandem").parent = logging.getLogger("ray.serve")
