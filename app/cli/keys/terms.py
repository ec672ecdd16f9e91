"""Limits of a key on the command line: the options that set them, and their display in a line."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tandem.deployments.modes import MODES

DAY_S = 24 * 3600.0

Budget = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="In races, share of prompt tokens for the constrained endpoint, at most."
    ),
]
ExchangeRate = Annotated[
    float | None, typer.Option(min=0, help="What a joule of the devices is worth at most, dollars.")
]
Requests = Annotated[int | None, typer.Option(min=0, help="A minute; 0: no limit.")]
Tokens = Annotated[int | None, typer.Option(min=0, help="A minute, in and out; 0: no limit.")]
Concurrent = Annotated[int | None, typer.Option(min=0, help="Answers at once; 0: no limit.")]
Modes = Annotated[list[str] | None, typer.Option("--mode", help=f"May be used: {', '.join(MODES)}, or all.")]
Devices = Annotated[list[str] | None, typer.Option("--device", help="May be used, by name, or all.")]
Days = Annotated[float | None, typer.Option(min=0, help="Until it expires; 0: never.")]


def terms_form(
    budget: float | None,
    exchange_rate: float | None,
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    modes: list[str] | None,
    devices: list[str] | None,
    days: float | None,
) -> dict[str, Any]:
    """Return the limits in the API's form."""
    return {
        "budget": budget,
        "exchange_rate": exchange_rate,
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "concurrent": concurrent,
        "modes": _names(modes),
        "devices": _names(devices),
        "expires_s": days if not days else time.time() + days * DAY_S,
    }


def told(terms: dict[str, Any]) -> str:
    """Return the limits in a line."""
    shown = {
        "requests_per_minute": "{:,} requests/min",
        "tokens_per_minute": "{:,} tokens/min",
        "concurrent": "{} at once",
        "budget": "budget {:g}",
        "exchange_rate": "{:g} $/J",
    }
    limits = [text.format(terms[name]) for name, text in shown.items() if terms.get(name) is not None]
    limits += [f"{what}: {', '.join(terms[what])}" for what in ("modes", "devices") if terms.get(what)]
    if terms.get("expires_s"):
        limits.append(time.strftime("until %Y-%m-%d %H:%M", time.localtime(terms["expires_s"])))
    return "; ".join(limits)


def _names(given: list[str] | None) -> list[str] | None:
    """ "all" lifts the limit."""
    if not given:
        return None
    return [] if given == ["all"] else given
