"""`tandem teams`, and keys of teams."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tests.app.api.null_backend import NullBackend


@pytest.fixture
def backend(tmp_path) -> NullBackend:
    return NullBackend(ledger=tmp_path / "ledger.sqlite")


def test_a_team_from_its_making_to_its_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_URL", url)

    def run(*words: str, fails: bool = False) -> str:
        done = CliRunner().invoke(cli, list(words))
        assert done.exit_code == int(fails), done.stderr
        return done.stderr if fails else done.stdout

    assert run("teams", "list") == "There is no team.\n"
    assert run("teams", "make", "red", "--usd", "20", "--per", "week").startswith("red\t20 $ a week")
    assert "no team 'blue'" in run("keys", "make", "ada", "--role", "operator", "--team", "blue", fails=True)
    key = json.loads(run("keys", "make", "ada", "--role", "operator", "--team", "red", "--json"))
    monkeypatch.setenv("TANDEM_API_KEY", key["secret"])
    assert "red" in run("keys", "list")
    (team,) = json.loads(run("teams", "list", "--json"))
    assert (team["name"], team["limits"]["usd"], team["keys"]) == ("red", 20.0, [key["id"]])
    assert "1 at once" in run("teams", "change", "red", "--concurrent", "1", "--usd", "0")
    assert run("teams", "list").splitlines()[1].split("\t")[:2] == ["red", "1 at once"]
    assert "keys belong to the team" in run("teams", "remove", "red", fails=True)
    run("keys", "change", key["id"], "--team", "")
    assert run("teams", "remove", "red") == "The team red is removed.\n"
