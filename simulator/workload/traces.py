"""Traces from files: our own, DSD's, and those that Azure, Mooncake and BurstGPT have published.

A trace is a .jsonl or a .csv file; its columns tell its format, and `FORMATS` lists them all. Errors name file and
row.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tandem.deployments.modes import MODES
from tandem.simulator.workload.request import Request, unpack

Row = Mapping[str, Any]
V = TypeVar("V")


@dataclass(frozen=True)
class Format:
    """Column names of a trace.

    arrival: arrival time, from any origin.
    unit_s: seconds of the arrival's unit; None if it is a date and time.
    prompt, output: lengths, tokens.
    optional: further columns by the field of Request that they fill.
    published: whether others publish it: rows in any order, further columns, and failed requests (without prompt or
        answer), which are left out.
    """

    name: str
    arrival: str
    unit_s: float | None
    prompt: str
    output: str
    optional: Mapping[str, str] = field(default_factory=dict)
    published: bool = False

    @property
    def needed(self) -> tuple[str, str, str]:
        return self.arrival, self.prompt, self.output


FORMATS = (
    Format(
        "Tandem",
        "arrival_s", 1.0, "prompt_tokens", "output_tokens",
        {name: name for name in ("acceptance", "device", "mode", "max_tokens", "reader_rate")},
    ),
    Format(
        "DSD",
        "arrival_time_ms", 1e-3, "prompt_length", "output_length",
        {"acceptance": "acceptance_seq", "device": "drafter_id"},
    ),
    Format("DSD, lengths only", "arrival_ms", 1e-3, "prompt_tokens", "target_tokens"),
    Format("Azure", "TIMESTAMP", None, "ContextTokens", "GeneratedTokens", published=True),
    Format("Mooncake", "timestamp", 1e-3, "input_length", "output_length", published=True),
    Format("BurstGPT", "Timestamp", 1.0, "Request tokens", "Response tokens", published=True),
)  # fmt: skip
"""Known formats. A CSV file may have further columns, a JSONL file only in a published format."""


class TraceError(ValueError):
    """A trace that cannot be used; the message names file and row."""


def read_trace(path: str | Path) -> list[Request]:
    """Return all requests of a file in order of arrival; a published trace begins at 0. Raises TraceError."""
    path = Path(path)
    rows = {".jsonl": _jsonl, ".csv": _csv}.get(path.suffix)
    if rows is None:
        raise TraceError(f"{path}: a trace is a .jsonl or a .csv file")
    if not path.is_file():
        raise TraceError(f"{path}: there is no such file")
    requests: list[Request] = []
    columns: Format | None = None
    for number, row in rows(path):
        try:
            columns = columns or _format(row)
            request = _request(row, columns, strict=path.suffix == ".jsonl")
        except ValueError as error:
            raise TraceError(f"{path}, row {number}: {error}") from None
        if request is None:
            continue
        if requests and request.arrival_s < requests[-1].arrival_s and not columns.published:
            raise TraceError(
                f"{path}, row {number}: arrives at {request.arrival_s:g} s, before the row above "
                f"({requests[-1].arrival_s:g} s); sort the trace by arrival"
            )
        requests.append(request)
    if not requests:
        raise TraceError(f"{path}: the trace is empty")
    if columns is None or not columns.published:
        return requests
    requests.sort(key=lambda request: request.arrival_s)
    first_s = requests[0].arrival_s
    return [replace(request, arrival_s=request.arrival_s - first_s) for request in requests]


def _jsonl(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(f"{path}, row {number}: {error}") from None
            if not isinstance(row, dict):
                raise TraceError(f"{path}, row {number}: an object is expected")
            yield number, {name: value for name, value in row.items() if value is not None}


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or ()
        if not any(set(columns.needed) <= set(names) for columns in FORMATS):
            raise TraceError(f"{path}, row 1: {_needs()}")
        for number, row in enumerate(reader, 2):
            yield number, {name: value for name, value in row.items() if value}


def _format(row: Row) -> Format:
    found = next((columns for columns in FORMATS if set(columns.needed) <= set(row)), None)
    if found is None:  # the nearest, whose missing columns are then named
        found = max(FORMATS, key=lambda columns: len(set(columns.needed) & set(row)))
        if not set(found.needed) & set(row):
            raise ValueError(_needs())
    return found


def _needs() -> str:
    return "needs the columns " + "; or ".join(", ".join(columns.needed) for columns in FORMATS)


def _request(row: Row, columns: Format, strict: bool) -> Request | None:
    """The request of a row; None for one that failed."""
    for name in columns.needed:
        if name not in row:
            raise ValueError(f"{name} is missing")
    if strict and not columns.published:
        known = {*columns.needed, *columns.optional.values()}
        if unknown := sorted(set(row) - known):
            raise ValueError(f"no column {unknown[0]!r} (allowed: {', '.join(sorted(known))})")
    least = 0 if columns.published else 1
    prompt = _whole(row, columns.prompt, least)
    output = _whole(row, columns.output, least)
    if not prompt or not output:
        return None

    def said(key: str, read: Callable[[Row, str], V], nothing: V) -> V:
        name = columns.optional.get(key)
        return read(row, name) if name is not None and name in row else nothing

    acceptance = said("acceptance", _acceptance, None)
    if acceptance is not None and len(acceptance) != output:
        name = columns.optional["acceptance"]
        raise ValueError(f"{name} has {len(acceptance)} entries, {columns.output} is {output}")
    return Request(
        arrival_s=_arrival_s(row, columns),
        prompt_tokens=prompt,
        output_tokens=output,
        acceptance=acceptance,
        device=said("device", _whole, None),
        reader_rate=said("reader_rate", _number, 0.0),
        mode=said("mode", _mode, None),
        max_tokens=said("max_tokens", _at_least_one, None),
    )


def _arrival_s(row: Row, columns: Format) -> float:
    if columns.unit_s is not None:
        return _number(row, columns.arrival) * columns.unit_s
    value = row[columns.arrival]
    try:
        time = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{columns.arrival} must be a date and time, not {value!r}") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _number(row: Row, name: str, least: int = 0) -> float:
    try:
        number = math.nan if isinstance(row[name], bool) else float(row[name])
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"{name} must be a number of at least {least}, not {row[name]}")
    return number


def _whole(row: Row, name: str, least: int = 0) -> int:
    number = _number(row, name, least)
    if number != int(number):
        raise ValueError(f"{name} must be a whole number, not {row[name]}")
    return int(number)


def _at_least_one(row: Row, name: str) -> int:
    return _whole(row, name, 1)


def _mode(row: Row, name: str) -> str:
    if row[name] not in MODES:
        raise ValueError(f"{name} cannot be {row[name]!r} (allowed: {', '.join(MODES)})")
    return str(row[name])


def _acceptance(row: Row, name: str) -> bytes:
    text = str(row[name])
    if text.strip("01"):
        raise ValueError(f"{name} may hold 0 and 1 only")
    return unpack(text)
