"""An answer on the terminal, as it is written: colours or marks say where every token comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tandem.app.client.client import Piece, Stream
from tandem.app.client.http import Json

Origins = Literal["colours", "marks", "legend", "none"]
"""Ways to show origins: every token in a colour or behind a mark, or only their numbers after the answer, or none."""


class Look(NamedTuple):
    """Look of tokens of one origin.

    style: of rich.
    mark: before a run of them, where there are no colours.
    meaning: their name in the legend.
    """

    style: str
    mark: str
    meaning: str


LOOKS = {
    "cloud": Look("bright_blue", "C", "cloud"),
    "device": Look("bright_green", "D", "device"),
    "draft": Look("green", "+", "drafted and accepted"),
    "corrected": Look("bright_red", "!", "corrected"),
    "bonus": Look("bright_yellow", "*", "bonus of the cloud"),
    "sketch": Look("cyan", "S", "sketch"),
    "expansion": Look("bright_cyan", "E", "expanded from the sketch"),
    "prompt": Look("dim", "P", "prompt"),
}


def look(origin: str) -> Look:
    """Return how an origin is shown, also one that only a newer server knows."""
    return LOOKS.get(origin) or Look("", origin[:1].upper() or "?", origin)


@dataclass(frozen=True, slots=True)
class Screen:
    """Consoles that answers go to.

    answers: console for their text.
    notes: console for everything else: the legend, figures, failures.
    origins: how origins are shown.
    """

    answers: Console
    notes: Console
    origins: Origins

    @classmethod
    def of_process(cls, origins: Origins | None = None) -> Screen:
        """Return stdout, with notes on stderr where stdout is no terminal: what a program reads is the bare text.

        origins: None: colours on a terminal, marks on one without (NO_COLOR, TERM=dumb), the legend elsewhere.
        """
        wanted = origins == "colours"
        answers = Console(
            highlight=False, force_terminal=True if wanted else None, no_color=False if wanted else None
        )
        notes = answers if answers.is_terminal else Console(highlight=False, stderr=True)
        return cls(answers, notes, origins or default_origins(answers))


def default_origins(console: Console) -> Origins:
    """Return how origins are shown by default."""
    if not console.is_terminal:
        return "legend"
    return "marks" if console.no_color or console.color_system is None else "colours"


def show(stream: Stream, screen: Screen) -> None:
    """Print an answer as it arrives, then the legend and its cost."""
    last = ""
    for piece in stream:
        screen.answers.print(_shown(piece, last, screen.origins), end="", soft_wrap=True)
        last = piece.origin
    screen.answers.print()
    if stream.answer.stats and screen.origins != "none":
        show_stats(stream.answer.stats, screen)


def show_stats(stats: Mapping[str, Any], screen: Screen) -> None:
    """Print the legend and the cost of an answer."""
    if screen.notes.is_terminal:
        screen.notes.print()
    screen.notes.print(legend(stats["tokens"]["by_origin"], screen.origins), soft_wrap=True)
    screen.notes.print(Text(summary(stats), "dim"), soft_wrap=True)


def _shown(piece: Piece, last: str, origins: Origins) -> Text:
    """Return a piece's text, by its origin. last: origin of the piece before."""
    if origins == "colours":
        return Text(piece.text, look(piece.origin).style)
    marked = origins == "marks" and piece.origin not in ("", last)
    return Text(f"[{look(piece.origin).mark}]{piece.text}" if marked else piece.text)


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
            print("\t".join(row), file=console.file)
        return
    table = Table(*(Column(column, overflow="fold") for column in columns))
    for row in rows:
        table.add_row(*row)
    console.print(table)


def plain(value: object) -> str:
    """Return a value for people and programs alike: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def legend(by_origin: Mapping[str, int], origins: Origins = "colours") -> Text:
    """Return the origins that occur, with the tokens behind them."""
    line = Text()
    for origin, tokens in by_origin.items():
        style, mark, meaning = look(origin)
        if origins == "colours":
            line.append("■ ", style)
        elif origins == "marks":
            line.append(f"[{mark}] ")
        line.append(f"{tokens} {meaning}   ")
    line.rstrip()
    return line


def summary(stats: Mapping[str, Any]) -> str:
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
    if moves := stats.get("moves"):
        parts.append(_moved(moves))
    return " · ".join(parts)


def _moved(moves: Sequence[Mapping[str, Any]]) -> str:
    """Return how often an answer went on elsewhere, and why."""
    whys = Counter(move["words"] for move in moves)
    several = len(whys) > 1
    said = (f"{words} ({_times(count)})" if several and count > 1 else words for words, count in whys.items())
    return f"moved {_times(whys.total())}: {', '.join(said)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _figure(value: int | float | dict[str, int]) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{reason} {count}" for reason, count in value.items())
    return f"{value:.2f}" if isinstance(value, float) else str(value)
