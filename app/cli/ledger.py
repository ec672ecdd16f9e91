"""`tandem ledger`: copies of the ledger, on the machine that it lies on, or from a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tandem.app.cli.server.target import failures
from tandem.app.cli.server.up import LEDGER
from tandem.app.client.http import ClientError
from tandem.deployments.access.databases.place import place_of, told
from tandem.deployments.access.ledger_backup import Content, back_up, check, restore
from tandem.deployments.access.store import LedgerError

cli = typer.Typer(
    help="""Back up, restore and check the ledger.

It has keys, teams, limits and usage. These commands open the file or the database itself, not the server.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Ledger = Annotated[
    str,
    typer.Option(
        "--ledger",
        help="The ledger, a file or postgresql://USER@HOST/NAME; by default that of `tandem up` in this folder.",
        show_default=False,
    ),
]


@cli.command()
def backup(
    file: Annotated[Path, typer.Argument(help="A new file for the copy.")], ledger: Ledger = str(LEDGER)
) -> None:
    """Copy the ledger, as it is at this moment, into a file; a server may go on writing it."""
    with _explained():
        print(f"{file} has {_told(back_up(place_of(ledger), file))}.")


@cli.command("restore")
def restore_(file: Annotated[Path, typer.Argument(help="The copy.")], ledger: Ledger = str(LEDGER)) -> None:
    """Put a copy in the ledger's place; refused while a server has that open."""
    with _explained():
        content = restore(file, place := place_of(ledger))
        print(f"{told(place)} has {_told(content)}.")


@cli.command("check")
def check_(
    ledger: Annotated[
        str, typer.Argument(help="A ledger or a copy; by default that of `tandem up` here.")
    ] = str(LEDGER),
) -> None:
    """Check that a ledger is whole: the file, its version, keys with their secrets, and usage beside its totals."""
    with _explained():
        content = check(place := place_of(ledger))
        print(f"{told(place)} is whole: {_told(content)}.")


@contextmanager
def _explained() -> Iterator[None]:
    with failures():
        try:
            yield
        except LedgerError as error:
            raise ClientError(str(error)) from None


def _told(content: Content) -> str:
    version, keys, requests, usd = content
    return f"{keys} keys, {requests:,} requests and {usd:,.6g} dollars of usage, version {version}"
