"""`tandem models`: the models on this machine's disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tandem.app.cli.server.target import AsJson, failures
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import ClientError
from tandem.engine.models.dtype import Precision
from tandem.engine.models.hub import HubError, HubModel, fetch, remove
from tandem.engine.models.model_folder import UnsupportedModel

if TYPE_CHECKING:
    from tandem.app.cli.models.inventory import DiskModel

cli = typer.Typer(rich_markup_mode=None)

Name = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="org/name, org/name/FILE.gguf or org/name:Q4_K_M; @REVISION may follow."
    ),
]
COLUMNS = ("model", "size", "architecture", "weights", "vocabulary", "engines", "can be")


@cli.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that are here; fetch and remove a hub's.

    Those that are here can be named without a network. A hub's lie in its cache: HF_HOME, HF_ENDPOINT, HF_TOKEN and
    HF_HUB_OFFLINE are honoured.
    """
    if context.invoked_subcommand is not None:
        return
    with failures():
        from tandem.app.cli.models.inventory import on_disk

        with Console(stderr=True).status("Reading models"):
            found = on_disk()
        if as_json:
            print(json.dumps([_content(model, found) for model in found]))
        else:
            show_table(Console(highlight=False), COLUMNS, [_row(model, found) for model in found])


@cli.command("fetch")
def fetch_(name: Name) -> None:
    """Fetch a hub's model, or what has changed of it."""
    with failures():
        try:
            print(fetch(_hub_model(name)))
        except (HubError, UnsupportedModel) as error:
            raise ClientError(str(error)) from None


@cli.command("remove")
def remove_(name: Name) -> None:
    """Delete a hub's model from this machine's disk."""
    with failures():
        freed = remove(_hub_model(name))
        if freed is None:
            raise ClientError(f"{name} is not in the hub's cache")
        print(f"{_size(freed)} freed.")


@cli.command("convert")
def convert_(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, here or on a hub.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must not exist.")],
    dtype: Annotated[Precision, typer.Option(help="Precision of the weights.")] = "bfloat16",
) -> None:
    """Write a GGUF file's model as a Hugging Face folder, for the engines torch and vllm, training and split bundles.

    Quantised weights become the numbers that they stand for: the model stays as good as it was, and takes more room.
    """
    with failures():
        from tandem.deployments.pools.models import model_path
        from tandem.engine.gguf.convert import convert

        try:
            if (file := model_path(model)).suffix != ".gguf":
                raise ClientError(f"{model} is no GGUF file")
            with Console(stderr=True).status(f"Converting {file.name}"):
                convert(file, folder, dtype)
        except (ValueError, OSError) as error:
            raise ClientError(str(error)) from None
        print(folder)


def _hub_model(name: str) -> HubModel:
    """Raises ClientError."""
    if (model := HubModel.parse(name)) is None:
        raise ClientError(
            f"{name!r} is no name of a hub's model, such as org/name, org/name/FILE.gguf or org/name:Q4_K_M"
        )
    return model


def _content(model: DiskModel, others: Sequence[DiskModel]) -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "size_bytes": model.size,
        "architecture": model.architecture,
        "weights": model.weights,
        "context": model.context,
        "vocabulary": model.vocabulary,
        "engines": model.engines,
        "roles": model.roles(others),
        "problem": model.problem,
    }


def _row(model: DiskModel, others: Sequence[DiskModel]) -> tuple[str, ...]:
    can_be = model.problem or ", ".join(model.roles(others))
    engines = ", ".join(model.engines)
    return (
        model.name,
        _size(model.size),
        model.architecture,
        model.weights,
        model.vocabulary or "?",
        engines,
        can_be,
    )


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
