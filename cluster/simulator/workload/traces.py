"""Traces from files: our own JSONL, and the CSV files of Azure's and of DSD's authors.

Whatever is wrong with a trace is said in one line that names file and row.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from cluster.simulator.workload.request import Record, Request

# What the public files call the columns: (arrival, seconds per unit, prompt, output)
_CSV_COLUMNS = (
    ("arrival_s", 1.0, "prompt_tokens", "output_tokens"),  # Azure, and measured vLLM runs
    ("arrival_ms", 1e-3, "prompt_tokens", "target_tokens"),  # DSD
    ("arrival_time_ms", 1e-3, "prompt_length", "output_length"),
)


class TraceError(ValueError):
    """A trace that cannot be used; the message names file and row."""


def read_trace(path: str | Path) -> list[Request]:
    """All requests of a file, by its suffix .jsonl or .csv, in order of arrival. Raises TraceError."""
    path = Path(path)
    rows = {".jsonl": _jsonl, ".csv": _csv}.get(path.suffix)
    if rows is None:
        raise TraceError(f"{path}: a trace is a .jsonl or a .csv file")
    if not path.is_file():
        raise TraceError(f"{path}: there is no such file")
    requests: list[Request] = []
    for row, request in rows(path):
        if requests and request.arrival_s < requests[-1].arrival_s:
            raise TraceError(
                f"{path}, row {row}: arrives at {request.arrival_s:g} s, before the row above "
                f"({requests[-1].arrival_s:g} s); sort the trace by arrival"
            )
        requests.append(request)
    if not requests:
        raise TraceError(f"{path}: the trace is empty")
    return requests


def write_trace(path: str | Path, requests: Iterable[Request]) -> None:
    """Write a JSONL trace that `read_trace` gives back."""
    with Path(path).open("wb") as file:
        for request in requests:
            file.write(msgspec.json.encode(Record.of(request)) + b"\n")


def _jsonl(path: Path) -> Iterator[tuple[int, Request]]:
    decoder = msgspec.json.Decoder(Record)
    with path.open("rb") as file:
        for row, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield row, decoder.decode(line).request()
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise TraceError(f"{path}, row {row}: {error}") from None


def _csv(path: Path) -> Iterator[tuple[int, Request]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        have = set(reader.fieldnames or ())
        names = next((names for names in _CSV_COLUMNS if {names[0], names[2], names[3]} <= have), None)
        if names is None:
            known = "; or ".join(f"{a}, {p}, {o}" for a, _, p, o in _CSV_COLUMNS)
            raise TraceError(f"{path}, row 1: needs the columns {known}")
        arrival, unit_s, prompt, output = names
        for row, fields in enumerate(reader, 2):
            try:
                record = Record(
                    prompt_length=int(_field(fields, prompt)),
                    output_length=int(_field(fields, output)),
                    arrival_time_ms=float(_field(fields, arrival)) * unit_s * 1e3,
                )
            except ValueError as error:
                raise TraceError(f"{path}, row {row}: {error}") from None
            yield row, record.request()


def _field(fields: dict[str, str | None], name: str) -> str:
    value = fields.get(name)
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    return value
