"""Screens that keep what is shown on them."""

from __future__ import annotations

import io

from rich.console import Console

from tandem.app.cli.terminal.render import Origins, Screen


def screen(origins: Origins = "legend", terminal: bool = True) -> Screen:
    """Make a wide screen for answers and notes together."""
    console = Console(
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        file=io.StringIO(),
        highlight=False,
        width=200,
        _environ={},
    )
    return Screen(console, console, origins)


def shown(screen: Screen) -> str:
    """Return all that was shown."""
    assert isinstance(screen.answers.file, io.StringIO)
    return screen.answers.file.getvalue()
