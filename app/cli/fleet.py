"""`tandem fleet`: what is up and who works for whom, and operators' orders for it."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console

from tandem.app.cli.server.target import AsJson, Url, failures, server
from tandem.app.cli.terminal.render import show_table
from tandem.app.client.http import HttpClient, Json

cli = typer.Typer(
    help="""Show the fleet, drain replicas, stop devices; for operators.

Emulated links can be throttled or cut, too. Answers that are being given go on elsewhere.""",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Replica = Annotated[str, typer.Argument(help="A replica's name, as `tandem fleet list` shows it.")]
Device = Annotated[str, typer.Argument(help="A device's name.")]


@cli.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List replicas and devices, with their work, and the orders in force."""
    with failures(), HttpClient(server(url)) as client:
        found = client.get("/v1/fleet")
        if as_json:
            print(json.dumps(found))
            return
        show_table(Console(highlight=False), ("name", "model", "sessions", "state"), _rows(found))


@cli.command()
def drain(replica: Replica, url: Url = None) -> None:
    """Give a replica no new requests; those under way end there or, after `endpoint.drain_s`, go on elsewhere."""
    _order(url, f"replicas/{quote(replica, safe='')}", {"drained": True}, f"{replica} takes no new requests.")


@cli.command()
def undrain(replica: Replica, url: Url = None) -> None:
    """Give a drained replica requests again."""
    _order(url, f"replicas/{quote(replica, safe='')}", {"drained": False}, f"{replica} takes requests.")


@cli.command()
def stop(device: Device, url: Url = None) -> None:
    """Give a device no work; answers that it works for go on elsewhere."""
    _order(url, f"devices/{quote(device, safe='')}", {"stopped": True}, f"{device} is stopped.")


@cli.command()
def start(device: Device, url: Url = None) -> None:
    """Give a stopped device work again."""
    _order(url, f"devices/{quote(device, safe='')}", {"stopped": False}, f"{device} takes work.")


@cli.command()
def link(
    device: Device,
    url: Url = None,
    cut: Annotated[bool, typer.Option("--cut", help="Carry nothing.")] = False,
    rtt_ms: Annotated[float | None, typer.Option(min=0, help="Round-trip time, milliseconds.")] = None,
    up_mbit: Annotated[float | None, typer.Option(min=0, help="Megabits/s from the device.")] = None,
    down_mbit: Annotated[float | None, typer.Option(min=0, help="Megabits/s to the device.")] = None,
    loss: Annotated[float | None, typer.Option(min=0, max=1, help="Share of frames that are lost.")] = None,
) -> None:
    """Throttle or cut the emulated link of a device; without options it is as configured again."""
    said = {"rtt_ms": rtt_ms, "up_mbit_per_s": up_mbit, "down_mbit_per_s": down_mbit, "loss": loss}
    change: Json = {name: value for name, value in said.items() if value is not None}
    if cut:
        change["cut"] = True
    _order(
        url,
        f"devices/{quote(device, safe='')}",
        {"link": change or None},
        f"The link of {device} is changed.",
    )


def _order(url: str | None, path: str, change: Json, done: str) -> None:
    with failures(), HttpClient(server(url)) as client:
        client.patch(f"/v1/fleet/{path}", change)
        print(done)


def _rows(found: Json) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for replicas, state in ((found["pools"], "up"), (found["drained"], "drained")):
        for each in (each for pool in replicas.values() for each in pool):
            rows.append(
                (each["name"], each.get("model", ""), str(each["sessions"]), each["refusal"] or state)
            )
    for each in found["devices"]:
        rows.append((each["name"], each.get("model", ""), str(each["sessions"]), _state(found, each["name"])))
    rows += [(name, "", "", _state(found, name, "missing")) for name in found["missing"]]
    return rows


def _state(found: dict[str, Any], device: str, otherwise: str = "up") -> str:
    if device in found["stopped"]:
        return "stopped"
    if (link := found["links"].get(device)) is not None:
        return "link cut" if link["cut"] else "link changed"
    return otherwise
