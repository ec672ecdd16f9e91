"""Explanation of an answer, for `tandem explain`: why its mode was chosen, what was expected of it, and what came."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from rich.console import Console

from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import ClientError, HttpClient

FIGURES = ("ttft_s", "tpot_s", "stall_s", "usd", "joules")


def explain_answer(client: HttpClient, answer: str, as_json: bool) -> None:
    """Print the reasons of an answer. answer: id of a response that is kept; "-": its JSON is on stdin.

    Raises ClientError.
    """
    told = client.get(f"/v1/responses/{quote(answer, safe='')}") if answer != "-" else _read()
    parts = told.get("tandem")
    why = parts.get("why") if isinstance(parts, dict) else None
    if not why:
        raise ClientError("the server compared nothing for this answer: router.collaboration is not `auto`")
    if as_json:
        print(json.dumps(why))
        return
    for line in sentences(why):
        print(line)
    if why["chosen"] is None:
        return
    print()
    show_table(Console(highlight=False), *table(why))


def sentences(why: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words why the mode was chosen. why: as in `tandem.why`."""
    if (replaced := why["replaced"]) is not None:
        parts = ", ".join(f"{count} of kind {kind}" for kind, count in replaced.items())
        yield f"Private parts were replaced before the request left: {parts or 'none was found'}."
    if why["chosen"] is None:
        return
    second, by_usd = why["runner_up"], why["by_usd"]
    chosen = _way(why["chosen"])
    if second is None:
        yield f"{chosen} was the only way that its limits and wishes left open."
    elif why["tried"]:
        yield f"{chosen} was tried to learn of it, at an expected loss ${-by_usd:.4g} above that of {_way(second)}."
    else:
        yield f"{chosen} was the best of {why['ways']} ways: ${by_usd:.4g} of expected loss below {_way(second)}."
    if why["limit_missed"]:
        yield "No way was expected to keep the limit of seconds to the first token; this one came closest."
    for change in why["changes"]:
        position, way = change["position"], _way(change["chosen"])
        yield f"Tokens came late: after {position} of them the answer went on in {way}."


def table(why: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: what was expected, what came, and what was expected of the runner-up."""
    chosen, came, second = why["chosen"], why["came"], why["runner_up"]
    ways = [chosen] if second is None else [chosen, second]
    columns = ["", *(f"{_way(way)}, expected (80 %)" for way in ways)]
    columns.insert(2, "came")
    rows = [[name, *(_interval(way[name]) for way in ways)] for name in FIGURES]
    for row, name in zip(rows, FIGURES, strict=True):
        row.insert(2, f"{came[name]:.4g}")
    for name in ("quality", "leaves"):
        rows.append([name, *(str(way[name]) for way in ways)])
        rows[-1].insert(2, "")
    return columns, rows


def _way(outlook: Mapping[str, Any]) -> str:
    return outlook["mode"] if outlook["device"] is None else f"{outlook['mode']} with {outlook['device']}"


def _interval(expected: Mapping[str, float]) -> str:
    value, low, high = (expected[name] for name in ("value", "low", "high"))
    return f"{value:.4g}" if low == high else f"{value:.4g} ({low:.4g} to {high:.4g})"


def _read() -> dict[str, Any]:
    try:
        told = json.load(sys.stdin)
    except ValueError as error:
        raise ClientError(f"stdin holds no JSON: {error}") from None
    if not isinstance(told, dict):
        raise ClientError("stdin holds no answer of the API")
    return told
