"""Traces as a user would write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tandem.simulator.workload import Request


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    """A JSONL trace that `read_trace` gives back."""
    with path.open("w") as file:
        for request in requests:
            row = {name: value for name, value in asdict(request).items() if value not in (None, 0.0)}
            row["arrival_s"] = request.arrival_s
            if request.device is not None:
                row["device"] = request.device
            if request.acceptance is not None:
                row["acceptance"] = "".join(map(str, request.acceptance))
            file.write(json.dumps(row) + "\n")
