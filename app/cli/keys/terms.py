"""Limits of a key on the command line: the options that set them, and their display in a line."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from tandem.deployments.access.usage import Period
from tandem.deployments.modes import MODES
from tandem.policies.routing.objectives import OBJECTIVES

InTeam = Annotated[
    str | None, typer.Option("--team", help="Its team, whose limits hold, too; see `tandem teams`.")
]
DAY_S = 24 * 3600.0

OPTIONS: dict[str, Any] = {
    "budget": Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="In races, share of prompt tokens for the constrained endpoint, at most."
        ),
    ],
    "exchange_rate": Annotated[
        float | None, typer.Option(min=0, help="Greatest price of a joule of the devices, dollars.")
    ],
    "requests": Annotated[int | None, typer.Option(min=0, help="Requests per minute; 0: no limit.")],
    "tokens": Annotated[
        int | None, typer.Option(min=0, help="Tokens per minute, input and output; 0: no limit.")
    ],
    "concurrent": Annotated[int | None, typer.Option(min=0, help="Concurrent answers; 0: no limit.")],
    "modes": Annotated[
        list[str] | None, typer.Option("--mode", help=f"May be used: {', '.join(MODES)}, or all.")
    ],
    "devices": Annotated[list[str] | None, typer.Option("--device", help="Allowed names, or all.")],
    "usd": Annotated[
        float | None, typer.Option(min=0, help="Dollars for the server's tokens in a period; 0: no limit.")
    ],
    "per": Annotated[Period | None, typer.Option(help="The period of --usd, by the calendar, UTC.")],
    "objective": Annotated[
        str | None,
        typer.Option(
            help=f"What counts for its requests, whose limits they keep: {', '.join(OBJECTIVES)}, or none."
        ),
    ],
    "days": Annotated[float | None, typer.Option(min=0, help="Days until it expires; 0: never.")],
}
"""Options that set a key's limits."""
QUOTA = ("requests", "tokens", "concurrent", "usd", "per")
"""The options that set a team's limits."""


def takes_terms(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these of the OPTIONS; it gets them as `terms`, in the API's form."""

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.name != "terms"]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in OPTIONS.items()
            if name in names
        ]

        @wraps(command)
        def with_options(**given: Any) -> None:
            terms = _form({name: given.pop(name, None) for name in OPTIONS})
            command(**given, terms=terms)

        with_options.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return with_options

    return wrap


def _form(given: dict[str, Any]) -> dict[str, Any]:
    """Return the limits in the API's form."""
    days = given["days"]
    return {
        "budget": given["budget"],
        "exchange_rate": given["exchange_rate"],
        "requests_per_minute": given["requests"],
        "tokens_per_minute": given["tokens"],
        "concurrent": given["concurrent"],
        "modes": _names(given["modes"]),
        "devices": _names(given["devices"]),
        "usd": given["usd"],
        "per": given["per"],
        "objective": "" if given["objective"] == "none" else given["objective"],
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
    if terms.get("usd") is not None:
        limits.append(f"{terms['usd']:,g} $ a {terms['per']}")
    if own := terms.get("objective"):
        limits.append(f"objective: {_objective(own)}")
    limits += [f"{what}: {', '.join(terms[what])}" for what in ("modes", "devices") if terms.get(what)]
    if terms.get("expires_s"):
        limits.append(time.strftime("until %Y-%m-%d %H:%M", time.localtime(terms["expires_s"])))
    return "; ".join(limits)


def _objective(own: dict[str, Any]) -> str:
    """Return an objective's limits, and the worth of a second."""
    shown = {
        "ttft_s": "first token within {:g} s",
        "usd": "at most {:g} $",
        "min_quality": "quality {:g}",
        "privacy": "{} leaves the device",
        "second_usd": "{:g} $/s",
    }
    said = {name: own[name] for name in shown if own.get(name) and own[name] != "text"}
    return ", ".join(shown[name].format(value) for name, value in said.items())


def _names(given: list[str] | None) -> list[str] | None:
    """ "all" lifts the limit."""
    if not given:
        return None
    return [] if given == ["all"] else given
