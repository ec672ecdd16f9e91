"""Public files as the benchmarks read them: what is kept of a download, byte for byte the same on every machine."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

Downloads = Sequence[tuple[str, bytes]]
"""Files of a repository: the path there, and the content."""
Prepare = Callable[[Downloads], bytes]
Row = list[str]

PEAK_S = 1200
"""Seconds of a trace's busiest window."""
LEFT_OUT = re.compile(
    r"|time_stats\..*|.*_(min|max|mean|std)|block_size|max_model_len|attention_backend|profile_method"
)
"""Columns of profiles that nobody reads."""
CHARACTERS = 4.4
"""Characters of a token of English text."""


def as_it_is(downloads: Downloads) -> bytes:
    """Return all of a file."""
    return _only(downloads)


def unpacked(downloads: Downloads) -> bytes:
    """Return the content of a gzip file."""
    return gzip.decompress(_only(downloads))


def medians(downloads: Downloads) -> bytes:
    """Return a profile of Vidur's with the median of each time, in milliseconds; the other columns stay."""
    return _written(_medians(downloads))


def attention_medians(downloads: Downloads) -> bytes:
    """Return a profile of attention with the medians, once where only columns that are left out differ."""
    return _written(dict.fromkeys(map(tuple, _medians(downloads))))


def _medians(downloads: Downloads) -> Iterator[Row]:
    header, *rows = _table(_only(downloads))
    names = {i: _median_name(name) for i, name in enumerate(header)}
    kept = {i: name for i, name in names.items() if name is not None}
    yield [*kept.values()]
    yield from ([row[i] for i in kept] for row in rows)


def _median_name(column: str) -> str | None:
    """Return what a column is called; None for one that is left out."""
    if median := re.fullmatch(r"time_stats\.(\w+)\.median", column):
        return f"{median[1]}_ms"
    return None if LEFT_OUT.fullmatch(column) else column


def chosen_inputs(downloads: Downloads) -> bytes:
    """Return a table of layers with every number of tokens to 64, multiples of 16 to 512 and of 64 to 2048."""
    header, *rows = _table(_only(downloads))
    at = header.index("input")
    return _written([header, *(row for row in rows if _chosen(int(row[at])))])


def _chosen(tokens: int) -> bool:
    return tokens <= 64 or (tokens <= 512 and tokens % 16 == 0) or (tokens <= 2048 and tokens % 64 == 0)


def arrivals(downloads: Downloads) -> bytes:
    """Return a trace of Azure's in the order of arrival, with the seconds since the first."""
    return _arrivals(sorted(_table(_only(downloads))[1:], key=_arrival_s))


def peak(downloads: Downloads) -> bytes:
    """Return the PEAK_S seconds of a trace of Azure's in which most requests arrive, from a request on."""
    rows = sorted(_table(_only(downloads))[1:], key=_arrival_s)
    times_s, end, most, first = [_arrival_s(row) for row in rows], 0, 0, 0
    for begin, time_s in enumerate(times_s):
        while end < len(rows) and times_s[end] < time_s + PEAK_S:
            end += 1
        if end - begin > most:
            most, first = end - begin, begin
    return _arrivals(rows[first : first + most])


def _arrivals(rows: Sequence[Row]) -> bytes:
    first_s = _arrival_s(rows[0])
    shown = ([row[0], f"{float(round(_arrival_s(row) - first_s, 6))}", *row[1:]] for row in rows)
    return _written([["timestamp_utc", "arrival_s", "prompt_tokens", "output_tokens"], *shown])


def _arrival_s(row: Row) -> Decimal:
    day, fraction = row[0].split(".")
    return Decimal(int((datetime.fromisoformat(day) - datetime(2023, 1, 1)).total_seconds())) + Decimal(
        f"0.{fraction}"
    )


def dsd_trace(downloads: Downloads) -> bytes:
    """Return a trace of the DSD authors' as a table."""
    columns = ("request_id", "arrival_ms", "prompt_tokens", "target_tokens")
    return _written([columns, *([f"{one[name]}" for name in columns] for one in _objects(downloads))])


def dsd_client_trace(downloads: Downloads) -> bytes:
    """Return a trace of the DSD authors' as a table, with the client of each request."""
    columns = ("request_id", "arrival_ms", "prompt_tokens", "target_tokens")
    rows = (
        [*(f"{one[name]}" for name in columns), one["metadata"]["client_id"]] for one in _objects(downloads)
    )
    return _written([[*columns, "client"], *rows])


def lengths(downloads: Downloads) -> bytes:
    """Return the lengths of prompts; the texts are not kept."""
    rows = list[Row]()
    for path, content in downloads:
        for i, line in enumerate(content.splitlines()):
            text = json.loads(line)["prompt"]
            numbers = i, len(text), len(text.split()), round(len(text) / CHARACTERS)
            rows.append([PurePosixPath(path).stem, *map(str, numbers)])
    return _written([["file", "index", "chars", "words", "est_tokens"], *rows])


def measured_run(downloads: Downloads) -> bytes:
    """Return the times of requests that vLLM served, by the request, relative to the first arrival."""
    found = _objects(downloads)
    first_s = min(one["arrival_time"] for one in found)
    header = [
        "request_id",
        "prompt_tokens",
        "output_tokens",
        "arrival_s",
        "queue_wait_s",
        "ttft_s",
        "e2e_s",
        "tpot_s",
    ]
    return _written([header, *(_served(one, first_s) for one in found)])


def _served(one: Mapping[str, Any], first_s: float) -> Row:
    queued_s, token_s, last_s = one["queued_ts"], one["first_token_ts"], one["last_token_ts"]
    times_s = (
        one["arrival_time"] - first_s,
        one["scheduled_ts"] - queued_s,
        token_s - queued_s,
        last_s - queued_s,
        (last_s - token_s) / max(1, one["output_toks"] - 1),
    )
    counts = one["request_id"], one["input_toks"], one["output_toks"]
    return [*map(str, counts), *(f"{round(each_s, 6)}" for each_s in times_s)]


def wifi(downloads: Downloads) -> bytes:
    """Return the traces of a Wi-Fi in one table, with place and beginning of each."""
    rows = list[Row]()
    for path, content in downloads:
        _, place, begin = PurePosixPath(path).stem.split("_")
        rows += [[place, begin, *line.split()] for line in content.decode().splitlines() if line.strip()]
    return _written([["location", "trace", "t_s", "mbps"], *rows])


def services(downloads: Downloads) -> bytes:
    """Return LLMPerf's requests to services in one table, without the texts."""
    rows = list[Row]()
    for path, content in downloads:
        provider, size = PurePosixPath(path).stem.split("_")
        rows += [
            [provider, f"llama-2-{size}-chat", f"{i}", *_request(one)]
            for i, one in enumerate(json.loads(content))
        ]
    header = "provider,model,index,ttft_s,inter_token_latency_s,e2e_s,prompt_tokens,output_tokens,error_code"
    return _written([header.split(","), *rows])


def _request(one: Mapping[str, Any]) -> Row:
    times_s = (one.get(name) for name in ("ttft_s", "inter_token_latency_s", "end_to_end_latency_s"))
    code = one.get("error_code")
    tokens = f"{one['number_input_tokens']}", f"{one['number_output_tokens']}"
    return [*map(_told, times_s), *tokens, "" if code is None else f"{float(code)}"]


def samples(downloads: Downloads) -> bytes:
    """Return thefastest.ai's samples, of several versions of its file, in one table, each once, by time."""
    rows = dict[tuple[str, str, str], Row]()
    for _, content in downloads:
        for run in json.loads(content):
            for one in run["results"]:
                key = run["time"], run["region"], one["model"]
                ttr, ttft, speed, total = (
                    _told(one.get(name), 5) for name in ("ttr", "ttft", "tps", "total_time")
                )
                tokens = "" if one.get("num_tokens") is None else f"{one['num_tokens']}"
                rows.setdefault(key, [*key, ttr, ttft, speed, tokens, total, one.get("error") or ""])
    header = [
        "time_utc",
        "region",
        "model",
        "ttr_s",
        "ttft_s",
        "tokens_per_s",
        "num_tokens",
        "total_time_s",
        "error",
    ]
    return _written([header, *(rows[key] for key in sorted(rows))])


def _told(value: float | None, decimals: int = 6) -> str:
    """Return a number, rounded; "" for none."""
    return "" if value is None else f"{round(float(value), decimals)}"


def _only(downloads: Downloads) -> bytes:
    ((_, content),) = downloads
    return content


def _objects(downloads: Downloads) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _only(downloads).splitlines()]


def _table(download: bytes) -> list[Row]:
    return list(csv.reader(io.StringIO(download.decode())))


def _written(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
