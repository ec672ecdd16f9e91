"""An answer on the terminal, as it is written: colours say where every token comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tandem.app.client.client import pieces
from tandem.app.client.http import Json

# Origin → (style, what the legend calls it).
ORIGINS = {
    "cloud": ("bright_blue", "cloud"),
    "device": ("bright_green", "device"),
    "draft": ("green", "drafted and accepted"),
    "corrected": ("bright_red", "corrected"),
    "bonus": ("bright_yellow", "bonus of the cloud"),
    "sketch": ("cyan", "sketch"),
    "expansion": ("bright_cyan", "expanded from the sketch"),
    "prompt": ("dim", "prompt"),
}


def show(chunks: Iterable[Json], console: Console) -> str:
    """Print an answer as it arrives, then the legend and its cost; return its text.

    On anything but a terminal: the bare text.
    """
    said: list[str] = []
    stats: Json = {}
    for chunk in chunks:
        for text, origin in pieces(chunk):
            said.append(text)
            console.print(Text(text, ORIGINS.get(origin, ("", ""))[0]), end="", soft_wrap=True)
        stats = chunk.get("tandem", {}).get("stats", stats)
    console.print()
    if console.is_terminal and stats:
        console.print()
        console.print(legend(stats["tokens"]["by_origin"]), soft_wrap=True)
        console.print(Text(summary(stats), "dim"), soft_wrap=True)
    return "".join(said)


DEVICE_COLUMNS = ("name", "hardware", "RTT ms", "busy", "battery")


def device_row(device: Json) -> tuple[str, ...]:
    """A device of the API in the columns that fit everywhere; --json has all of it."""
    battery = device.get("battery")
    return (
        device["name"],
        device.get("profile", "?") + (" (emulated)" if device.get("emulated") else ""),
        f"{device.get('rtt_s', 0.0) * 1e3:.1f}",
        f"{device.get('sessions', 0)} of {device.get('capacity', 1)}",
        "mains" if battery is None else f"{battery:.0%}",
    )


def show_table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on a terminal, in which nothing is cut off; tab-separated lines otherwise."""
    if not console.is_terminal:
        for row in (columns, *rows):
            print("\t".join(row))
        return
    table = Table(*(Column(column, overflow="fold") for column in columns))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def legend(by_origin: dict[str, int]) -> Text:
    """The colours that occur, with the tokens behind them."""
    line = Text()
    for origin, tokens in by_origin.items():
        style, meaning = ORIGINS.get(origin, ("", origin))
        line.append("■ ", style).append(f"{tokens} {meaning}   ")
    return line


def summary(stats: Json) -> str:
    """One line about how an answer was served."""
    timing, tokens = stats["timing"], stats["tokens"]["output"]
    writing_s = timing["total_s"] - timing["ttft_s"]
    parts = [
        stats["mode"] + (f" with {stats['device']}" if stats["device"] else ""),
        f"{tokens} tokens",
        f"first after {timing['ttft_s']:.2f} s",
    ]
    if tokens > 1 and writing_s > 0:
        parts.append(f"then {(tokens - 1) / writing_s:.1f} a second")
    figures = stats["modes"].get(stats["mode"], {})
    parts += [f"{name.replace('_', ' ')} {_figure(value)}" for name, value in figures.items() if value]
    if stats["replans"]:
        parts.append(f"moved {stats['replans']} times")
    return " · ".join(parts)


def _figure(value: int | float | dict[str, int]) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{reason} {count}" for reason, count in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)
