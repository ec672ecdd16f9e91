"""`tandem keys device`: the keys with which devices of their own dial in."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tandem.app.cli.keys.terms import OPTIONS, InTeam, takes_terms, told
from tandem.app.cli.server.target import AsJson, Url, failures, server
from tandem.app.cli.terminal.render import show_table
from tandem.app.cli.terminal.secret import STDOUT, place_for
from tandem.app.client.http import ClientError, HttpClient
from tandem.deployments.access.device_name import device_name
from tandem.deployments.access.keys import Role

cli = typer.Typer(
    help="""Make, list, rotate and revoke the keys of devices.

Such a key opens the cloud's gateway to the one device that has it, and nothing of the API. Its name is what requests
call the device, and stays. `tandem keys change` changes its terms.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _checked(name: str) -> str:
    """Return the name if a device may have it, before a file is named after it. Raises typer.BadParameter."""
    try:
        return device_name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Named = Annotated[str, typer.Argument(metavar="NAME", help="The device's, or its key's id.")]
File = Annotated[
    Path | None,
    typer.Option(
        help="Destination of the secret: a new file that only its owner can read, or - for stdout. No file is "
        "overwritten. By default NAME.key, in this folder."
    ),
]


@cli.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the keys of devices. Their secrets are known only to their holders."""
    with failures(), HttpClient(server(url)) as client:
        found = _all(client)
        if as_json:
            print(json.dumps(found))
            return
        console = Console(highlight=False)
        if not found:
            console.print("No device has a key.")
            return
        show_table(console, ("name", "id", "secret", "made", "terms"), map(_row, found))


@cli.command()
@takes_terms(*(name for name in OPTIONS if name != "devices"))
def make(
    name: Annotated[str, typer.Argument(callback=_checked, help="Name of the device in requests.")],
    file: File = None,
    url: Url = None,
    team: InTeam = None,
    *,
    terms: dict[str, Any],
) -> None:
    """Make a device's key, and write its secret to a file, which is the only place where it is."""
    file = file or Path(f"{name}.key")
    with failures(), HttpClient(server(url)) as client:
        gateway = _gateway(client)
        with place_for(file) as put:
            key = client.post("/v1/keys", {"name": name, "role": str(Role.DEVICE), "team": team, **terms})
            try:
                put(key["secret"] + (gateway[1] if gateway else ""))
            except BaseException:
                _undo(client, key["id"])
                raise
        if file != STDOUT:
            print(f"The secret of {name}'s key, {key['id']}, is in {file}, and nowhere else.")
            _tell_next(file, gateway)


@cli.command()
def rotate(
    name: Named,
    file: File = None,
    url: Url = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds for which the old secret stays valid.")] = 0.0,
) -> None:
    """Give a device's key a new secret, and write it to a file, which is the only place where it is."""
    with failures(), HttpClient(server(url)) as client:
        key = _one(client, name)
        file = file or Path(f"{key['name']}.key")
        gateway = _gateway(client)
        with place_for(file) as put:
            rotated = client.post(f"/v1/keys/{key['id']}/rotate", {"grace_s": grace})
            try:
                put(rotated["secret"] + (gateway[1] if gateway else ""))
            except BaseException:
                print("tandem: the new secret is lost; rotate the key once more", file=sys.stderr)
                raise
        if file != STDOUT:
            old = f"holds for {grace:g} s more" if grace else "opens nothing any more"
            print(f"The new secret of {key['name']}'s key is in {file}, and nowhere else. The old one {old}.")
            _tell_next(file, gateway)


@cli.command()
def revoke(name: Named, url: Url = None) -> None:
    """Revoke a device's key. Its usage stays in the ledger."""
    with failures(), HttpClient(server(url)) as client:
        key = _one(client, name)
        client.delete(f"/v1/keys/{key['id']}")
        print(f"{key['name']}'s key, {key['id']}, is revoked.")


def _all(client: HttpClient) -> list[dict[str, Any]]:
    return [key for key in client.get("/v1/keys")["data"] if key["role"] == Role.DEVICE]


def _one(client: HttpClient, named: str) -> dict[str, Any]:
    """Return the key named by its device, whose name may look like another key's id, or by its own id."""
    known = _all(client)
    for said in ("name", "id"):
        for key in known:
            if key[said] == named:
                return key
    raise ClientError(f"no device {named!r} has a key; `tandem keys device list` shows those that have")


def _undo(client: HttpClient, id: str) -> None:
    """Revoke a key whose secret could not be delivered."""
    try:
        client.delete(f"/v1/keys/{id}")
    except ClientError as error:
        print(f"tandem: {id} must be revoked, as its secret could not be kept: {error}", file=sys.stderr)
    else:
        print(f"tandem: {id} was revoked again, as its secret could not be kept", file=sys.stderr)


def _gateway(client: HttpClient) -> tuple[str, str] | None:
    """Return the address of the server's gateway, and the end of keys that names its certificate; None if unknown."""
    from tandem.app.cli.server.up import gateway_here

    return gateway_here(client.url)


def _tell_next(file: Path, gateway: tuple[str, str] | None) -> None:
    place = gateway[0] if gateway else "HOST:PORT"
    start = f"tandem device --connect {place} --key {shlex.quote(str(file))}"
    print(f"Take the file to the device, and start there:\n\n    {start}")


def _row(key: dict[str, Any]) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d", time.localtime(key["made_s"]))
    return key["name"], key["id"], f"…{key['hint']}", made, told(key["terms"])
