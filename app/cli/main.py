"""The command line, `tandem`: a function per command, with its work in a module of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args
from urllib.parse import urlencode

import typer
from rich.console import Console

from tandem.app.cli import fleet, ledger
from tandem.app.cli.keys import keys, teams
from tandem.app.cli.models import models
from tandem.app.cli.server.target import AsJson, Url, failures, server
from tandem.app.cli.terminal.render import (
    DEVICE_COLUMNS,
    Origins,
    Screen,
    device_row,
    show,
    show_table,
)
from tandem.app.client.http import ClientError, HttpClient
from tandem.deployments.access.usage import Group
from tandem.deployments.modes import AUTO, MODES
from tandem.policies.routing.objectives import OBJECTIVES

if TYPE_CHECKING:
    from tandem.app.cli.chat.conversation import Conversation
    from tandem.app.cli.server.choose import Service

HELP = """Language models served from the edge and the cloud together.

Exit status: 0 when all went well, 1 when something failed (the reason is on stderr), 2 for wrong usage,
130 after Ctrl-C."""

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tandem {metadata.version('tandem-llm')}")
        raise typer.Exit


@cli.callback(help=HELP)
def tandem(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """Take the options of all commands."""


cli.add_typer(keys.cli, name="keys")
cli.add_typer(teams.cli, name="teams")
cli.add_typer(ledger.cli, name="ledger")
cli.add_typer(models.cli, name="models")
cli.add_typer(fleet.cli, name="fleet")

Mode = Annotated[
    str | None, typer.Option(help=f"{', '.join(MODES)}; or {AUTO}, the default: the server chooses.")
]
Device = Annotated[str | None, typer.Option(help='A name of `tandem devices`, or "any".')]
Window = Annotated[int | None, typer.Option(min=1, max=64, help="Tokens drafted in a round.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="The longest answer, in tokens.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="0 always takes the likeliest token.")]
Seed = Annotated[int | None, typer.Option(help="Makes the answer at a temperature repeatable.")]
Budget = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="In races, share of prompt tokens for the constrained endpoint."),
]
ChosenModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A folder, a GGUF file or a hub's model, in place of a YAML; the rest is chosen. May be given for several "
        "models behind one address, the first one by default.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Only print the Serve YAML that --model stands for.")
]
ExchangeRate = Annotated[float | None, typer.Option(min=0, help="Price of a joule of the devices, dollars.")]
ShownOrigins = Annotated[
    Origins | None,
    typer.Option(
        help="How to show where tokens come from: the text in colours or with marks, or a legend alone after it. By "
        "default colours on a terminal, marks on one without colours, and elsewhere a legend on stderr."
    ),
]
Model = Annotated[str | None, typer.Option(help="A model that the server lists; by default its first.")]


GROUPS: tuple[str, ...] = get_args(Group)


def _groups(given: list[str] | None) -> list[str] | None:
    """Refuse what usage is not kept apart by."""
    if unknown := [name for name in given or () if name not in GROUPS]:
        raise typer.BadParameter(f"there is no {unknown[0]!r}, but {', '.join(GROUPS)}")
    return given


def _drawable(path: Path | None) -> Path | None:
    """Refuse what cannot be drawn, before anything is simulated."""
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path} should end in .png, .svg or .pdf")
    return path


Picture = Annotated[
    Path | None, typer.Option(callback=_drawable, help="Write a plot there: .png, .svg or .pdf.")
]

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Instead of the file's; dotted.")
]


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
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    model: Model = None,
    origins: ShownOrigins = None,
) -> None:
    """Ask a question; every token has the colour of its origin.

    Ctrl-C stops an answer. In a conversation, /help lists commands and keys, and Ctrl-D leaves.
    """
    from tandem.app.cli.chat.conversation import Conversation
    from tandem.app.cli.chat.session import card_of

    with failures(), HttpClient(server(url)) as client:
        request = _request(mode, device, window, max_tokens, temperature, seed)
        request["tandem"] |= {"budget": budget, "exchange_rate": exchange_rate}
        request["model"] = model or client.model()
        talk, screen = Conversation(client, request, system), Screen.of_process(origins)
        if prompt is None and sys.stdin.isatty():
            _converse(client, talk, screen)
            return
        if sys.stdout.isatty() and (about := card_of(client, request["model"]).get("about")):
            Console(stderr=True, highlight=False).print(about, style="dim", soft_wrap=True)
        with talk.ask(sys.stdin.read() if prompt is None else prompt) as stream:
            show(stream, screen)


def _converse(client: HttpClient, talk: Conversation, screen: Screen) -> None:
    from tandem.app.cli.chat import commands
    from tandem.app.cli.chat.prompt import Prompt
    from tandem.app.cli.chat.session import Chat
    from tandem.app.cli.chat.store import Store

    store = Store()
    prompt = Prompt(store.history(), list(commands.COMMANDS))
    Chat(client, talk, screen, store).loop(prompt.read, commands.run)


@cli.command()
def devices(
    url: Url = None, as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False
) -> None:
    """List the devices that are registered."""
    with failures(), HttpClient(server(url)) as client:
        found = client.get("/v1/devices")["data"]
        console = Console(highlight=False)
        if as_json:
            print(json.dumps(found))
        elif not found:
            console.print("No device is registered.")
        else:
            show_table(console, DEVICE_COLUMNS, map(device_row, found))


@cli.command()
def device(
    connect: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the cloud's gateway.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="The file with the device's key, from `tandem up --gateway` or `tandem keys device make`; or the key."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="The folder with the two ends of a split model, from `tandem split`, or with several such "
            "folders to choose from; or the device's own model: a folder, a GGUF file, or a hub's. May be given for "
            "each of the two."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="`openai`: a server that runs already, such as Ollama or llama-server, has the device's own model, "
            "and --model is its name there."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of that server's API, up to and with /v1.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Model whose tokenizer that server's model has: a folder, a GGUF file, or a hub's."
        ),
    ] = None,
    cloud_model: Annotated[
        str | None,
        typer.Option(help="Name of the cloud's model that helps; by default the gateway's choice."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of the device's own API, on this machine; by default 127.0.0.1:8001.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Only the port of --listen; 0: any that is free.")
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(help="PEM file of the gateway's authority; by default those that this machine trusts."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="YAML file with these and further settings."),
    ] = None,
) -> None:
    """Be a device: answer its owner, and help the cloud.

    Its owner has an API on this machine; the cloud's requests come over a connection to the cloud's gateway. Prompts in
    modes device and split do not leave it.
    """
    with failures():
        from tandem.app.cli import device as local

        if port is not None:
            if listen is not None:
                raise ClientError("--listen has the port; leave out one of --listen and --port")
            listen = f"127.0.0.1:{port}"
        said = {"connect": connect, "key": key, "listen": listen, "authority": authority}
        said |= {"cloud_model": cloud_model}
        service = None if engine is None else local.service_settings(engine, base_url, tokenizer)
        local.run(local.settings_of(config, said | local.model_settings(model or (), service)))


@cli.command()
def account(
    url: Url = None,
    device: Annotated[str | None, typer.Option(help="The device's account, without a key.")] = None,
    budget: Budget = None,
    exchange_rate: ExchangeRate = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show what you have spent, and set budget and exchange rate.

    The account is that of the key in TANDEM_API_KEY. --json has exact figures.
    """
    from tandem.app.cli.usage import show_account

    changes = {"budget": budget, "exchange_rate": exchange_rate}
    path = "/v1/account" if device is None else f"/v1/account?{urlencode({'device': device})}"
    with failures(), HttpClient(server(url)) as client:
        changed = any(value is not None for value in changes.values())
        found = client.patch(path, changes) if changed else client.get(path)
        if as_json:
            print(json.dumps(found))
        else:
            show_account(found)


@cli.command()
def usage(
    url: Url = None,
    start: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First day, UTC.")] = None,
    end: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last day, UTC.")] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(callback=_groups, help=f"Keep apart: {', '.join(GROUPS)}; by default the first three."),
    ] = None,
    account: Annotated[
        str | None, typer.Option(help="Only this account's, as the id of a key; for operators.")
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, for spreadsheets.")] = False,
) -> None:
    """Show what has been spent, by account, day and mode.

    In tokens, dollars and joules: by the key in TANDEM_API_KEY, or by all keys if it is an operator's. --json and --csv
    have exact figures.
    """
    from tandem.app.cli.usage import show_usage

    asked = {
        "start": start and start.date().isoformat(),
        "end": end and end.date().isoformat(),
        "by": by,
        "account": account,
    }
    with failures(), HttpClient(server(url)) as client:
        query = {name: value for name, value in asked.items() if value}
        show_usage(client, query, "json" if as_json else "csv" if as_csv else "table")


@cli.command()
def explain(
    answer: Annotated[
        str,
        typer.Argument(help="Id of a response that the server keeps, or - for an answer's JSON on stdin."),
    ],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show why the server chose an answer's mode and device.

    Also what it expected, the runner-up, and what came.
    """
    from tandem.app.cli.explain import explain_answer

    with failures(), HttpClient(server(url)) as client:
        explain_answer(client, answer, as_json)


@cli.command()
def bench(
    url: Url = None,
    requests: Annotated[int, typer.Option(min=1, help="Total number of requests.")] = 32,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Concurrent requests.")] = 8,
    mode: Mode = None,
    device: Device = None,
    window: Window = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    prompt: Annotated[
        str | None, typer.Option(help="One question for all requests; by default built-in ones.")
    ] = None,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Load a server with streams; report TTFT, TPOT and tokens/s."""
    from tandem.app.cli.bench.bench import run_bench

    with failures(), HttpClient(server(url)) as client:
        request = _request(mode, device, window, max_tokens, temperature, seed)
        request["model"] = model or client.model()
        run_bench(client.url, request, requests, concurrency, (prompt,) if prompt else None, as_json)


@cli.command()
def simulate(
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="A YAML file; see simulator/examples/."),
    ],
    settings: Overrides = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="KEY=V1,V2",
            help="Show which mode is the best where this varies, and what policy auto picks; may be given twice.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help=f"What counts in a map: {', '.join(OBJECTIVES)}; by default {next(iter(OBJECTIVES))}."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write all results there, as JSON; of a map a line per simulation, existing ones are not repeated."
        ),
    ] = None,
    plot: Picture = None,
) -> None:
    """Simulate a deployment under a workload, without hardware.

    It reports TTFT, TPOT, throughput and cost.
    """
    with failures():
        from tandem.app.cli.simulate import run_map, run_simulation

        if objective and not axes:
            raise ClientError("--objective is what counts in a map: name what varies with --map KEY=V1,V2")
        try:
            if axes:
                run_map(file, settings or (), axes, objective or next(iter(OBJECTIVES)), out, plot)
            else:
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
    settings: Overrides = None,
    out: Annotated[
        Path, typer.Option(help="File with a line per simulation; existing ones are not repeated.")
    ] = Path("sweep.jsonl"),
    plot: Picture = None,
) -> None:
    """Simulate every combination of settings, on all cores.

    An interrupted sweep goes on where it stopped.
    """
    with failures():
        from tandem.app.cli.simulate import run_sweep

        try:
            run_sweep(file, settings or (), vary, out, plot)
        except ValueError as error:  # what was asked for cannot be simulated
            raise ClientError(str(error)) from None


@cli.command()
def config(
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show meaning, unit, allowed values, and the names of policies."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As docs/settings.md has it.")] = False,
) -> None:
    """Show every setting of a Serve YAML's `args`, and its default."""
    with failures():
        from tandem.app.cli.config import markdown, settings
        from tandem.app.settings import Settings

        found = settings(Settings)
        if as_json:
            print(json.dumps([setting._asdict() for setting in found]))
        elif as_markdown:
            print(markdown(found), end="")
        else:
            for setting in found:
                if not setting.allowed:
                    print(f"{setting.key}: {setting.meaning}")
                    continue
                print(f"{setting.key}: {setting.default or '(must be given)'}")
                if explain:
                    unit = f", {setting.unit}" if setting.unit else ""
                    print(f"    {setting.meaning}\n    ({setting.allowed}{unit})")


@cli.command()
def up(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port on which the API listens, instead of the configured one."),
    ] = None,
    config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A Serve YAML.")] = None,
    models: ChosenModels = None,
    drafter: Annotated[
        str | None, typer.Option(help="With --model: a small model that drafts for it.")
    ] = None,
    device_model: Annotated[str | None, typer.Option(help="With --model: a device's model.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="With --model: torch, vllm or llamacpp; or openai: a service that runs already (Ollama, vLLM, a "
            "commercial one) has the models, and --model is a name there."
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="With --engine openai: address of its API, up to and with /v1."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="With --engine openai: model whose tokenizer counts tokens; by default the small model's."
        ),
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="With --engine openai: the variable that holds its key."),
    ] = None,
    route: Annotated[
        str,
        typer.Option(
            help="With --engine openai: chat, or completions, which vLLM and llama-server have, and which can go on "
            "with an answer that a device began."
        ),
    ] = "chat",
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Let devices of your own dial in over TLS, from other machines too; makes a key for the first one, "
            "and prints what to type there.",
        ),
    ] = False,
    gateway_port: Annotated[
        int, typer.Option(min=1, max=65535, help="With --gateway: the port that devices dial.")
    ] = 8443,
    print_config: PrintConfig = False,
    host: Annotated[
        str | None, typer.Option(help="Address on which the API listens, instead of the configured one.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM file: the API speaks TLS, and shows this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the certificate's key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines reach the API without TLS.")
    ] = False,
) -> None:
    """Start the application on this machine, and stay until Ctrl-C."""
    with failures():
        from tandem.app.cli.server import up as local
        from tandem.app.cli.server.front import Wishes, certificate

        try:
            wishes = Wishes(host, port, certificate(tls_cert, tls_key), insecure)
            file = config or local.CONFIG
            deployment: dict[str, Any] | None = None  # in place of the file
            served = _service(engine, base_url, tokenizer, key_env, route)
            if models:
                if config is not None:
                    raise ClientError("--config has the model; leave out one of --config and --model")
                deployment = local.chosen(_choose(models, drafter, device_model, engine, served))
            elif drafter or device_model or engine or print_config:
                raise ClientError("--drafter, --device-model, --engine and --print-config belong to --model")
            elif gateway:
                deployment = local.content(file)
            if gateway and deployment is not None:
                local.open_gateway(deployment, gateway_port)
            if models and deployment is not None:
                print(local.as_yaml(deployment))
            if not print_config:
                local.up(wishes, file if deployment is None else deployment, gateway)
        except local.UpError as error:
            raise ClientError(str(error)) from None


def _service(
    engine: str | None, base_url: str | None, tokenizer: str | None, key_env: str | None, route: str
) -> Service | None:
    from tandem.app.cli.server.choose import SERVICE, Service

    if engine == SERVICE:
        if base_url is None:
            raise ClientError(
                "give --base-url: http://127.0.0.1:11434/v1 for Ollama, http://127.0.0.1:8080/v1 for llama-server, "
                "https://api.openai.com/v1 for OpenAI"
            )
        return Service(base_url, tokenizer, key_env, route)
    if base_url or tokenizer or key_env:
        raise ClientError("--base-url, --tokenizer and --key-env belong to --engine openai")
    return None


def _choose(
    models: Sequence[str],
    drafter: str | None,
    device_model: str | None,
    engine: str | None,
    service: Service | None,
) -> dict[str, Any]:
    from tandem.app.cli.server.choose import SERVICE, choose
    from tandem.engine.models.model_folder import KINDS

    if engine is not None and engine not in (*KINDS, SERVICE):
        raise ClientError(f"--engine: there are {', '.join((*KINDS, SERVICE))}, and no {engine!r}")
    try:
        return choose(models[0], drafter, device_model, engine, others=models[1:], service=service)
    except (ValueError, OSError) as error:
        raise ClientError(str(error)) from None


@cli.command()
def deploy(
    config: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="A Serve YAML.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check it, and show what would restart or change in place.")
    ] = False,
) -> None:
    """Change what `tandem up` runs here to what a Serve YAML says.

    No request fails over it, and if a part does not come up, what ran before runs on.
    """
    with failures():
        from tandem.app.cli.deploy.change import change
        from tandem.app.cli.server import up as local

        try:
            change(config or local.CONFIG, dry_run)
        except local.UpError as error:
            raise ClientError(str(error)) from None


@cli.command()
def down() -> None:
    """Stop what `tandem up` has started in this folder."""
    with failures():
        from tandem.app.cli.server import up as local

        try:
            print("Stopped." if local.down() else "Nothing was running.")
        except local.UpError as error:
            raise ClientError(str(error)) from None


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


def main() -> None:
    """Run the console script `tandem`."""
    cli()
