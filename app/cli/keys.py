"""`tandem keys`: who may use a server, as what, and on which terms."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli.client import Client
from app.cli.common import Url, failures, server
from app.cli.render import show_table
from deployments.keys import Role
from deployments.modes import MODES

DAY_S = 24 * 3600.0

cli = typer.Typer(
    help="""Make, list, change, rotate and revoke API keys.

As long as there are none, the server answers this machine only, and everybody on it is an operator. The first key must
be an operator's. From then on, operators show theirs in TANDEM_API_KEY.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]
Id = Annotated[str, typer.Argument(help="As `tandem keys list` shows it.")]
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


@cli.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the keys. Their secrets are known to nobody but their holders."""
    with failures(), Client(server(url)) as client:
        found = client.get("/v1/keys")["data"]
        if as_json:
            print(json.dumps(found))
            return
        console = Console(highlight=False)
        if not found:
            console.print("There is no key: this machine alone is answered.")
            return
        show_table(console, ("id", "name", "role", "secret", "made", "terms"), map(_row, found))


@cli.command()
def make(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    url: Url = None,
    role: Annotated[Role, typer.Option(help="What it may do.")] = Role.USER,
    budget: Budget = None,
    exchange_rate: ExchangeRate = None,
    requests: Requests = None,
    tokens: Tokens = None,
    concurrent: Concurrent = None,
    modes: Modes = None,
    devices: Devices = None,
    days: Days = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and show its secret, this once."""
    terms = _terms(budget, exchange_rate, requests, tokens, concurrent, modes, devices, days)
    with failures(), Client(server(url)) as client:
        _show(client.post("/v1/keys", {"name": name, "role": str(role), **terms}), as_json)


@cli.command()
def change(
    id: Id,
    url: Url = None,
    name: Annotated[str | None, typer.Option(help="Whose it is.")] = None,
    role: Annotated[Role | None, typer.Option(help="What it may do.")] = None,
    budget: Budget = None,
    exchange_rate: ExchangeRate = None,
    requests: Requests = None,
    tokens: Tokens = None,
    concurrent: Concurrent = None,
    modes: Modes = None,
    devices: Devices = None,
    days: Days = None,
    as_json: AsJson = False,
) -> None:
    """Change a key's name, role or terms; what is left out stays as it is."""
    terms = _terms(budget, exchange_rate, requests, tokens, concurrent, modes, devices, days)
    form = {"name": name, "role": None if role is None else str(role), **terms}
    with failures(), Client(server(url)) as client:
        _show(client.patch(f"/v1/keys/{id}", form), as_json)


@cli.command()
def rotate(
    id: Id,
    url: Url = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for which the old secret holds.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, and show it, this once."""
    with failures(), Client(server(url)) as client:
        _show(client.post(f"/v1/keys/{id}/rotate", {"grace_s": grace}), as_json)


@cli.command()
def revoke(id: Id, url: Url = None) -> None:
    """A key opens nothing any more. What it has cost stays in the ledger."""
    with failures(), Client(server(url)) as client:
        client.delete(f"/v1/keys/{id}")
        print(f"{id} is revoked.")


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d", time.localtime(key["made_s"]))
    return key["id"], key["name"], key["role"], f"…{key['hint']}", made, _told(key["terms"])


def _terms(
    budget: float | None,
    exchange_rate: float | None,
    requests: int | None,
    tokens: int | None,
    concurrent: int | None,
    modes: list[str] | None,
    devices: list[str] | None,
    days: float | None,
) -> dict[str, Any]:
    """As the API takes them."""
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


def _names(given: list[str] | None) -> list[str] | None:
    """ "all" lifts the limit."""
    if not given:
        return None
    return [] if given == ["all"] else given


def _show(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(key))
        return
    print(f"{key['id']}\t{key['name']}\t{key['role']}\t{_told(key['terms'])}")
    if key.get("secret"):
        print(f"{key['secret']}\nKeep it: it is not shown again.")


def _told(terms: dict[str, Any]) -> str:
    """What is limited, in a line."""
    shown = {
        "requests_per_minute": "{:,} requests/min",
        "tokens_per_minute": "{:,} tokens/min",
        "concurrent": "{} at once",
        "budget": "budget {:g}",
        "exchange_rate": "{:g} $/J",
    }
    told = [text.format(terms[name]) for name, text in shown.items() if terms.get(name) is not None]
    told += [f"{what}: {', '.join(terms[what])}" for what in ("modes", "devices") if terms.get(what)]
    if terms.get("expires_s"):
        told.append(time.strftime("until %Y-%m-%d %H:%M", time.localtime(terms["expires_s"])))
    return "; ".join(told)
