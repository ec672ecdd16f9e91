"""Progress of a start."""

from __future__ import annotations

import io
import time

from rich.console import Console

from tandem.app.cli.server.up import progress
from tandem.app.cli.terminal.phases import line, phases


def test_a_log_has_a_line_for_each_change() -> None:
    console = Console(file=(file := io.StringIO()), width=20)
    with phases(console, time.monotonic() - 7.2) as tell:
        for text in ("Deploying", "Deploying", "Waiting for [laptop] and others", "Deploying"):
            tell(text)
    assert file.getvalue().splitlines() == [
        "   7 s  Deploying",
        "   7 s  Waiting for [laptop] and others",
        "   7 s  Deploying",
    ]


def test_a_terminal_shows_it_in_place() -> None:
    console = Console(file=(file := io.StringIO()), force_terminal=True, color_system=None, _environ={})
    line(console, "Starting Ray", 0.0)
    with phases(console, 0.0) as tell:
        tell("Waiting for [laptop]")
        tell("Deploying")
    first, *rest = file.getvalue().splitlines()
    assert first == "Starting Ray"
    assert any("Deploying" in shown for shown in rest)


def test_deployments_that_do_not_run_yet_are_named() -> None:
    assert progress([]) == "Deploying"
    started = {"Router": {"status": "HEALTHY"}, "Verifier": {"status": "UPDATING"}}
    assert progress([{"deployments": started}]) == "1 of 2 deployments run; starting Verifier"
    other = {"Other": {"status": "UNHEALTHY"}}
    both = [{"deployments": started}, {"deployments": other}]
    assert progress(both) == "1 of 3 deployments run; starting Verifier, Other"
    assert progress([{"deployments": {"Router": {"status": "HEALTHY"}}}]) == "1 of 1 deployments run"
