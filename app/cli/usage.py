"""Tables of `tandem usage` and `tandem account`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

from rich.console import Console

from tandem.app.cli.keys.terms import told
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import HttpClient


def show_usage(
    client: HttpClient, query: Mapping[str, str | Sequence[str]], form: Literal["table", "json", "csv"]
) -> None:
    """Print usage. query: parameters of /v1/usage. Raises ClientError."""
    path = f"/v1/usage?{urlencode(query, doseq=True)}"
    if form == "csv":
        print(client.text(f"{path}&format=csv"), end="")
        return
    rows: list[dict[str, Any]] = client.get(path)["data"]
    if form == "json":
        print(json.dumps(rows))
        return
    if not rows:
        print("Nothing has been used.", file=sys.stderr)
        return
    columns = [name for name in rows[0] if not name.startswith("server_usd_")]
    shown = ([_figure(row[name]) for name in columns] for row in rows)
    show_table(
        Console(highlight=False), [_UNITS.get(name, name.replace("_", " ")) for name in columns], shown
    )


def show_account(found: Mapping[str, Any]) -> None:
    """Print an account, as /v1/account has it."""
    console = Console(highlight=False)
    columns = ("what you spent", "requests", "tokens in", "tokens out", "dollars", "joules")
    rows = [
        _spent("in all", found),
        *(_spent(f"with {name}", bill) for name, bill in found["devices"].items()),
    ]
    rows[1:1] = [
        ("on the server", "", *_tokens(found, "server"), rounded(found["server_usd"]), ""),
        (
            "on devices",
            "",
            *_tokens(found, "device"),
            rounded(found["device_usd"]),
            rounded(found["device_joules"]),
        ),
    ]
    show_table(console, columns, rows)
    print()
    used = ", ".join(f"{share:.1%} at the {side}" for side, share in found["budget_used"].items())
    since = found["period"]
    terms = [
        ("terms", told(found["terms"])),
        ("prompt tokens of races", used or "none yet"),
        (f"dollars since {since['since']}", rounded(since["server_usd"])),
    ]
    show_table(console, ("account", found["account"]), terms)


def _spent(what: str, bill: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of a bill, server and device together."""
    tokens = (f"{bill[f'server_tokens_{way}'] + bill[f'device_tokens_{way}']:,}" for way in ("in", "out"))
    usd = bill["server_usd"] + bill["device_usd"]
    return (what, f"{bill['requests']:,}", *tokens, rounded(usd), rounded(bill["device_joules"]))


def _tokens(bill: Mapping[str, Any], side: str) -> tuple[str, str]:
    return f"{bill[f'{side}_tokens_in']:,}", f"{bill[f'{side}_tokens_out']:,}"


_UNITS = {
    "server_usd": "server, dollars",
    "device_usd": "device, dollars",
    "device_joules": "device, joules",
}
"""Columns of usage with their units."""


def _figure(value: str | int | float) -> str:
    if isinstance(value, float):
        return rounded(value)
    return f"{value:,}" if isinstance(value, int) else value


def rounded(value: float) -> str:
    """Return a number with two decimals, and one below 1 with three digits; never with an exponent."""
    if not value:
        return "0"
    digits = 2 if abs(value) >= 1 else 2 - math.floor(math.log10(abs(value)))
    return f"{value:,.{digits}f}"
