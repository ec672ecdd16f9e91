"""`tandem teams`: teams of keys, whose limits hold for all their keys together."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem.app.cli.keys.terms import QUOTA, takes_terms, told
from tandem.app.cli.server.target import AsJson, Url, failures, server
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import HttpClient

cli = typer.Typer(
    help="""Make, list, change and remove teams of keys.

A team's limits hold for all its keys together, beside each key's own. `tandem keys make NAME --team TEAM` makes a key
of a team.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="Name of the team.")]


@cli.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the teams: limits, dollars in the period, and keys."""
    with failures(), HttpClient(server(url)) as client:
        found = client.get("/v1/teams")["data"]
        if as_json:
            print(json.dumps(found))
            return
        console = Console(highlight=False)
        if not found:
            console.print("There is no team.")
            return
        show_table(console, ("name", "limits", "dollars", "since", "keys"), map(_row, found))


@cli.command()
@takes_terms(*QUOTA)
def make(name: Name, url: Url = None, as_json: AsJson = False, *, terms: dict[str, Any]) -> None:
    """Make a team."""
    with failures(), HttpClient(server(url)) as client:
        _show(client.post("/v1/teams", {"name": name, **terms}), as_json)


@cli.command()
@takes_terms(*QUOTA)
def change(name: Name, url: Url = None, as_json: AsJson = False, *, terms: dict[str, Any]) -> None:
    """Change a team's limits; omitted options stay as they are."""
    with failures(), HttpClient(server(url)) as client:
        _show(client.patch(f"/v1/teams/{name}", terms), as_json)


@cli.command()
def remove(name: Name, url: Url = None) -> None:
    """Remove a team that has no keys. Its usage stays in the ledger."""
    with failures(), HttpClient(server(url)) as client:
        client.delete(f"/v1/teams/{name}")
        print(f"The team {name} is removed.")


def _row(team: dict[str, Any]) -> tuple[str, ...]:
    period = team["period"]
    return (
        team["name"],
        told(team["limits"]),
        f"{period['server_usd']:,.6g}",
        period["since"],
        ", ".join(team["keys"]),
    )


def _show(team: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(team) if as_json else f"{team['name']}\t{told(team['limits'])}")
