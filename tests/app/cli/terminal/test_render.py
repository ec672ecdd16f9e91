"""Answers and tables on the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from tandem.app.cli.server.up import CONFIG
from tandem.app.cli.terminal import render as live
from tandem.app.client.client import Stream
from tandem.app.client.http import HttpClient
from tandem.deployments.request.tokenlog import Origin
from tests.app.api.null_backend import NullBackend
from tests.app.cli.screens import screen, shown


@pytest.fixture
def backend(tmp_path: Path) -> NullBackend:
    return NullBackend(says="Zürich 🗼", ledger=tmp_path / "ledger.sqlite")


@pytest.fixture
def client(url: str) -> Iterator[HttpClient]:
    with HttpClient(url) as client:
        yield client


def ask(client: HttpClient) -> Stream:
    messages = [{"role": "user", "content": "Hello?"}]
    tandem = {"mode": "speculative"}
    return Stream(client.chat({"model": "null", "max_tokens": 6, "tandem": tandem, "messages": messages}))


def test_colours_show_the_origins(client: HttpClient) -> None:
    there = screen("colours")
    live.show(stream := ask(client), there)
    assert stream.answer.text == "Züric"
    said = shown(there)
    assert "\x1b[32m" in said  # green: drafted
    assert "\x1b[91m" in said  # bright red: corrected
    assert "5 drafted and accepted" in said
    assert "speculative · 6 tokens" in said
    assert "rounds 2" in said


def test_marks_show_them_without_colours(client: HttpClient) -> None:
    there = screen("marks", terminal=False)
    live.show(ask(client), there)
    assert shown(there).splitlines()[:2] == ["[+]Zü[!]r[+]ic", "[+] 5 drafted and accepted   [!] 1 corrected"]


@pytest.mark.parametrize(
    ("terminal", "environment", "origins"),
    [
        (True, {"TERM": "xterm"}, "colours"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "marks"),
        (True, {"TERM": "dumb"}, "marks"),
        (False, {"TERM": "xterm"}, "legend"),
    ],
)
def test_origins_are_shown_as_well_as_the_terminal_can(
    terminal: bool, environment: Mapping[str, str], origins: str
) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, _environ=environment)
    assert live.default_origins(console) == origins


def test_every_origin_has_a_look_of_its_own() -> None:
    assert set(Origin) | {"prompt"} == set(live.LOOKS)
    assert len({look.mark for look in live.LOOKS.values()}) == len(live.LOOKS)
    assert live.look("newer") == ("", "N", "newer")


def test_the_figures_of_any_mode_are_summed_up() -> None:
    timing = {"ttft_s": 0.1, "total_s": 0.1}
    stats = {"mode": "race", "device": "pixel-1", "timing": timing, "tokens": {"output": 1}, "replans": 0}
    figures = {
        "cloud": {},
        "race": {"failovers": 0, "moved_at": 1.5, "in_full": {"short": 1}, "migrations": 1},
    }
    assert live.summary(stats | {"modes": figures}) == (
        "race with pixel-1 · 1 tokens · first after 0.10 s · moved at 1.50 · in full short 1 · migrations 1"
    )
    assert live.summary(stats | {"modes": {}}).endswith("0.10 s")


@pytest.mark.parametrize(
    ("whys", "said"),
    [
        (["the drafter was lost"], "moved once: the drafter was lost"),
        (["the target had no room"] * 3, "moved 3 times: the target had no room"),
        (["a", "b", "a"], "moved 3 times: a (twice), b"),
    ],
)
def test_an_answer_that_went_on_elsewhere_says_why(whys: list[str], said: str) -> None:
    stats = {
        "mode": "cloud",
        "device": None,
        "timing": {"ttft_s": 0.1, "total_s": 0.1},
        "tokens": {"output": 1},
    }
    moves = [{"words": why} for why in whys]
    assert live.summary(stats | {"modes": {}, "moves": moves}).endswith(f" · {said}")


def test_the_devices_that_ship_fit_a_terminal_of_80_columns() -> None:
    (application,) = yaml.safe_load(CONFIG.read_text())["applications"]
    devices = [
        {**device, "emulated": True, "rtt_s": 0.0321, "sessions": 1, "capacity": 1, "battery": 1.0}
        for host in application["args"]["hosts"]
        for device in host["devices"]
    ]
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    live.show_table(console, live.DEVICE_COLUMNS, map(live.device_row, devices))
    lines = file.getvalue().splitlines()
    assert len(lines) == len(devices) + 4, "a line for each"
    for device in devices:
        assert any(f" {device['name']} " in line and device["profile"] in line for line in lines)


def test_a_table_cuts_nothing_off() -> None:
    file = io.StringIO()
    console = Console(file=file, width=20, force_terminal=True, color_system=None)
    live.show_table(console, ("a_column_of_a_very_long_name", "b"), [("1", "2")])
    assert "…" not in file.getvalue()
