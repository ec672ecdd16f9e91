"""`tandem usage`: what it asks for, and how it shows it."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.app.cli.usage import rounded
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.request.bill import Bill
from tandem.policies.cost import Used

asked: list[UsageQuery] = []


@pytest.fixture
def used(backend, monkeypatch, url) -> None:
    async def usage(query: UsageQuery) -> list[Usage]:
        asked[:] = [query]
        place = tuple({"account": "key-1", "day": "2026-11-25", "mode": "cloud"}[group] for group in query.by)
        return [] if query.account == "nobody" else [Usage(place, Bill(3, Used(10, 20), 0.5, 0.25))]

    monkeypatch.setattr(backend, "usage", usage)
    monkeypatch.setenv("TANDEM_URL", url)


def run(*arguments: str):
    return CliRunner().invoke(cli, ["usage", *arguments])


@pytest.mark.usefixtures("used")
def test_a_table():
    shown = run(
        "--start", "2026-11-01", "--end", "2026-11-30", "--by", "day", "--by", "mode", "--account", "key-1"
    )
    assert shown.exit_code == 0, shown.stderr
    assert asked == [UsageQuery("key-1", "2026-11-01", "2026-11-30", ("day", "mode"))]
    header, row = shown.stdout.splitlines()
    cells = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (cells["day"], cells["mode"], cells["requests"]) == ("2026-11-25", "cloud", "3")
    assert (cells["server tokens out"], cells["server, dollars"]) == ("20", "0.750")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.0005035500000000001, "0.000504"),
        (0.25, "0.250"),
        (1234.5, "1,234.50"),
        (2.4e-9, "0.00000000240"),
    ],
)
def test_numbers_are_rounded_for_people(value: float, shown: str):
    assert rounded(value) == shown


@pytest.mark.usefixtures("used")
def test_for_programs_and_spreadsheets():
    (row,) = json.loads(run("--json").stdout)
    assert asked == [UsageQuery()]
    assert (row["account"], row["server_tokens_out"]) == ("key-1", 20)
    (same,) = csv.DictReader(io.StringIO(run("--csv").stdout))
    assert {name: str(value) for name, value in row.items()} == same
    assert run("--csv", "--account", "nobody").stdout.count("\n") == 1, "the columns' names alone"


@pytest.mark.usefixtures("used")
def test_nothing_and_nonsense():
    nothing = run("--account", "nobody")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "Nothing has been used.\n")
    assert json.loads(run("--account", "nobody", "--json").stdout) == []
    assert run("--start", "yesterday").exit_code == 2
    assert run("--by", "moon").exit_code == 2
    backwards = run("--start", "2026-11-02", "--end", "2026-11-01")
    assert backwards.exit_code == 1
    assert "is before" in backwards.stderr
