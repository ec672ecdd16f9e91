"""Common part of all commands: the server they talk to, and failures in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from tandem.app.cli.terminal.secret import abandon_stdout
from tandem.app.client.http import DEFAULT_URL, ClientError

Url = Annotated[
    str | None,
    typer.Option(
        envvar="TANDEM_URL", help=f"The server; otherwise what `tandem up` runs here, or {DEFAULT_URL}."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def server(url: str | None) -> str:
    """Return the address of the server to talk to."""
    if url is None:
        from tandem.app.cli.server.up import running

        url = running() or DEFAULT_URL
    return url


@contextmanager
def failures() -> Iterator[None]:
    """Says what failed in one line on stderr, and exits accordingly; TANDEM_DEBUG=1 shows the trace."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `tandem chat … | head`
        abandon_stdout()
        raise typer.Exit(1) from None
    except Exception as error:
        if os.environ.get("TANDEM_DEBUG") or isinstance(error, typer.Exit):
            raise
        unexpected = (
            "" if isinstance(error, ClientError) else f"{type(error).__name__}, TANDEM_DEBUG=1 shows where: "
        )
        print(f"tandem: {unexpected}{error}", file=sys.stderr)
        raise typer.Exit(1) from None
