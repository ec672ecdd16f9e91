"""`tandem keys`: who may use a server, as what, and on which terms."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from tandem.app.cli.keys import device_keys
from tandem.app.cli.keys.terms import OPTIONS, InTeam, takes_terms, told
from tandem.app.cli.server.target import AsJson, Url, failures, server
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import HttpClient
from tandem.deployments.access.keys import Role

cli = typer.Typer(
    help="""Make, list, change, rotate and revoke API keys.

As long as there are none, the server answers this machine only, and everybody on it is an operator. The first key must
be an operator's. From then on, operators show theirs in TANDEM_API_KEY. Devices' keys (`tandem keys device`) do not
count, for they do not open the API.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)
cli.add_typer(device_keys.cli, name="device")

Id = Annotated[str, typer.Argument(help="As `tandem keys list` shows it.")]
People = Literal["user", "operator"]
"""Roles that open the API. A device's key is made by `tandem keys device`, and stays one."""


@cli.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the keys. Their secrets are known only to their holders."""
    with failures(), HttpClient(server(url)) as client:
        found = client.get("/v1/keys")["data"]
        if as_json:
            print(json.dumps(found))
            return
        console = Console(highlight=False)
        if not found:
            console.print("There is no key: this machine alone is answered.")
            return
        show_table(console, ("id", "name", "role", "team", "secret", "made", "terms"), map(_row, found))
        if all(key["role"] == Role.DEVICE for key in found):
            console.print("No key opens the API: this machine alone is answered.")


@cli.command()
@takes_terms(*OPTIONS)
def make(
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    url: Url = None,
    role: Annotated[People, typer.Option(help="Role of the key.")] = "user",
    team: InTeam = None,
    as_json: AsJson = False,
    *,
    terms: dict[str, Any],
) -> None:
    """Make a key, and show its secret, this once."""
    with failures(), HttpClient(server(url)) as client:
        _show(client.post("/v1/keys", {"name": name, "role": role, "team": team, **terms}), as_json)


@cli.command()
@takes_terms(*OPTIONS)
def change(
    id: Id,
    url: Url = None,
    name: Annotated[str | None, typer.Option(help="Name of the key.")] = None,
    role: Annotated[People | None, typer.Option(help="Role of the key.")] = None,
    team: Annotated[
        str | None, typer.Option(help='Its team from now on, see `tandem teams`; "" for none.')
    ] = None,
    as_json: AsJson = False,
    *,
    terms: dict[str, Any],
) -> None:
    """Change a key's name, role or limits; omitted options stay as they are."""
    form = {"name": name, "role": role, "team": team, **terms}
    with failures(), HttpClient(server(url)) as client:
        _show(client.patch(f"/v1/keys/{id}", form), as_json)


@cli.command()
def rotate(
    id: Id,
    url: Url = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for which the old secret stays valid.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret, and show it, this once."""
    with failures(), HttpClient(server(url)) as client:
        _show(client.post(f"/v1/keys/{id}/rotate", {"grace_s": grace}), as_json)


@cli.command()
def revoke(id: Id, url: Url = None) -> None:
    """Revoke a key. Its usage stays in the ledger."""
    with failures(), HttpClient(server(url)) as client:
        client.delete(f"/v1/keys/{id}")
        print(f"{id} is revoked.")


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d", time.localtime(key["made_s"]))
    return (
        key["id"],
        key["name"],
        key["role"],
        key.get("team") or "",
        f"…{key['hint']}",
        made,
        told(key["terms"]),
    )


def _show(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(key))
        return
    print(f"{key['id']}\t{key['name']}\t{key['role']}\t{told(key['terms'])}")
    if key.get("secret"):
        print(f"{key['secret']}\nKeep it: it is not shown again.")
