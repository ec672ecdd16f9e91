"""The table of `tandem usage`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

from rich.console import Console

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
    shown = [
        [f"{row[name]:,.6g}" if isinstance(row[name], float) else str(row[name]) for name in columns]
        for row in rows
    ]
    show_table(Console(highlight=False), columns, shown)
