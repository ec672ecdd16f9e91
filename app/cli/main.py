"""The command line: `tandem up | down | chat | devices | account | bench | simulate | sweep`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.table import Table

from app.cli.client import Client, ClientError
from deployments.modes import MODES

DEFAULT_URL = "http://127.0.0.1:8000"
HELP = """Language models served from the edge and the cloud together.

Exit status: 0 when all went well, 1 when something failed (the reason is on stderr), 2 for wrong usage,
130 after Ctrl-C."""

cli = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Url = Annotated[
    str | None,
    typer.Option(
        envvar="TANDEM_URL", help=f"The server; otherwise what `tandem up` runs here, or {DEFAULT_URL}."
    ),
]
Mode = Annotated[str | None, typer.Option(help=f"{', '.join(MODES)}; otherwise the server chooses.")]
Device = Annotated[str | None, typer.Option(help='A name of `tandem devices`, or "any".')]
Window = Annotated[int | None, typer.Option(min=1, max=64, help="Tokens drafted in a round.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")]
Seed = Annotated[int | None, typer.Option(help="Makes the answer at a temperature repeatable.")]
Budget = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="In races, share of prompt tokens for the constrained endpoint."),
]
ExchangeRate = Annotated[
    float | None, typer.Option(min=0, help="What a joule of the devices is worth, dollars.")
]
Model = Annotated[str | None, typer.Option(help="A model the server names; otherwise its first.")]


@cli.command()
def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="The question; without one, a conversation or what stdin holds.")
    ] = None,
    url: Url = None,
    mode: Mode = None,
    device: Device = None,
    window: Window = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    budget: Budget = None,
    exchange_rate: ExchangeRate = None,
    system: Annotated[str | None, typer.Option(help="What the model is told beforehand.")] = None,
    model: Model = None,
) -> None:
    """Ask a question and see who writes the answer: every token in the colour of its origin.

    Ctrl-C ends an answer. In a conversation, /new forgets what was said, and /quit or Ctrl-D leaves.
    """
    from app.cli.conversation import Conversation

    with _failures(), Client(_server(url)) as client:
        request = _request(mode, device, window, max_tokens, temperature, seed)
        request["tandem"] |= {"budget": budget, "exchange_rate": exchange_rate}
        request["model"] = model or client.model()
        talk = Conversation(client, request, system, Console(highlight=False))
        if prompt is None and not sys.stdin.isatty():
            prompt = sys.stdin.read()
        if prompt is not None:
            talk.ask(prompt)
        else:
            talk.loop()


@cli.command()
def devices(
    url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """List the devices that are registered."""
    with _failures(), Client(_server(url)) as client:
        found = client.get("/v1/devices")["data"]
        console = Console(highlight=False)
        if as_json:
            print(json.dumps(found))
        elif not found:
            console.print("No device is registered.")
        elif console.is_terminal:
            table = Table(*found[0])
            for device in found:
                table.add_row(*("–" if value is None else str(value) for value in device.values()))
            console.print(table)
        else:
            for device in [{column: column for column in found[0]}, *found]:
                print("\t".join(map(str, device.values())))


@cli.command()
def account(
    url: Url = None,
    device: Annotated[str | None, typer.Option(help="The device's account, where there is no key.")] = None,
    budget: Budget = None,
    exchange_rate: ExchangeRate = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show what your requests have cost, and set budget and exchange rate. The account is that of the key in
    TANDEM_API_KEY."""
    changes = {"budget": budget, "exchange_rate": exchange_rate}
    path = "/v1/account" if device is None else f"/v1/account?{urlencode({'device': device})}"
    with _failures(), Client(_server(url)) as client:
        changed = any(value is not None for value in changes.values())
        found = client.patch(path, changes) if changed else client.get(path)
        if as_json:
            print(json.dumps(found))
        else:
            for name, value in found.items():
                print(f"{name}\t{value}")


@cli.command()
def bench(
    url: Url = None,
    requests: Annotated[int, typer.Option(min=1, help="How many requests in all.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="How many at a time.")] = 8,
    mode: Mode = None,
    device: Device = None,
    window: Window = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    prompt: Annotated[
        str | None, typer.Option(help="One question for all; otherwise some of our own.")
    ] = None,
    model: Model = None,
) -> None:
    """Load a server with streams, and report TTFT, TPOT and throughput."""
    from app.cli.bench import run_bench

    with _failures(), Client(_server(url)) as client:
        request = _request(mode, device, window, max_tokens, temperature, seed)
        request["model"] = model or client.model()
        run_bench(client.url, request, requests, concurrency, (prompt,) if prompt else None)


@cli.command()
def simulate(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="A YAML file; see simulator/examples/."),
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Instead of the file's; dotted.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything there, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture there: .png, .svg or .pdf.")] = None,
) -> None:
    """Simulate a deployment under a workload: TTFT, TPOT and throughput without the hardware."""
    with _failures():
        from app.cli.simulate import run_simulation

        try:
            run_simulation(file, settings or (), out, plot)
        except ValueError as error:  # what was asked for cannot be simulated
            raise ClientError(str(error)) from None


@cli.command()
def sweep(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="A YAML file; see simulator/examples/."),
    ],
    vary: Annotated[
        list[str], typer.Option(metavar="KEY=V1,V2", help="An axis of the grid; may be given many times.")
    ],
    out: Annotated[Path, typer.Option(help="A line a simulation; what is there is not done again.")] = Path(
        "sweep.jsonl"
    ),
) -> None:
    """Simulate every combination of settings, on all cores; an interrupted sweep goes on where it stopped."""
    with _failures():
        from app.cli.simulate import run_sweep

        try:
            run_sweep(file, vary, out)
        except ValueError as error:  # what was asked for cannot be simulated
            raise ClientError(str(error)) from None


@cli.command()
def up(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Instead of the configured one.")] = None,
    config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A Serve YAML.")] = None,
) -> None:
    """Start the application on this machine, and stay until Ctrl-C."""
    with _failures():
        from app.cli import up as local

        try:
            local.up(port, config or local.CONFIG)
        except local.UpError as error:
            raise ClientError(str(error)) from None


@cli.command()
def down() -> None:
    """Stop what `tandem up` has started in this folder."""
    with _failures():
        from app.cli import up as local

        try:
            print("Stopped." if local.down() else "Nothing was running.")
        except local.UpError as error:
            raise ClientError(str(error)) from None


def _server(url: str | None) -> str:
    if url is None:
        from app.cli.up import running

        url = running() or DEFAULT_URL
    return url


def _request(
    mode: str | None,
    device: str | None,
    window: int | None,
    max_tokens: int | None,
    temperature: float,
    seed: int | None,
) -> dict[str, Any]:
    """The body of a chat request, without model and messages; null is "not given"."""
    tandem = {"mode": mode, "device": device, "window": window}
    return {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "tandem": tandem}


@contextmanager
def _failures() -> Iterator[None]:
    """Says what failed in one line on stderr, and exits accordingly; TANDEM_DEBUG=1 shows the trace."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `tandem chat … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except Exception as error:
        if os.environ.get("TANDEM_DEBUG") or isinstance(error, typer.Exit):
            raise
        unexpected = (
            "" if isinstance(error, ClientError) else f"{type(error).__name__}, TANDEM_DEBUG=1 shows where: "
        )
        print(f"tandem: {unexpected}{error}", file=sys.stderr)
        raise typer.Exit(1) from None


def main() -> None:
    """The console script."""
    cli()
