"""The command `tandem`: the application's commands, and those of what stands above it, which import it when they run."""

from __future__ import annotations

from typing import Any

import typer

from tandem.app.cli.main import cli, main

__all__ = ["cli", "main"]

_PASSED_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "allow_interspersed_args": False,
    },
}
"""Settings of a command that takes its arguments as they are, `--help` among them."""


@cli.command(**_PASSED_ON)
def split(words: typer.Context) -> None:
    """Cut the two ends off a model, for devices in mode split."""
    from tandem.training.split import main as cut

    cut(words.args)


@cli.command(**_PASSED_ON)
def adapter(words: typer.Context) -> None:
    """Train the adapter with which a split model drafts."""
    from tandem.training.adapter.__main__ import main as train

    train(words.args)


@cli.command(**_PASSED_ON)
def benchmark(words: typer.Context) -> None:
    """List the benchmarks, or run one: NAME [OPTIONS]."""
    from tandem.benchmarks.__main__ import run

    run(words.args)


if __name__ == "__main__":
    main()
