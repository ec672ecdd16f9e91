"""`tandem ledger`: copies of the ledger of `tandem up` in this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.app.cli.server.up import LEDGER
from tandem.deployments.access.store import BillBatch, Ledger
from tandem.deployments.request.bill import Bill, Charge


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["ledger", *words])
    return done.exit_code, done.stdout + done.stderr


def test_a_backup_from_its_making_to_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("check") == (1, f"tandem: there is no ledger {LEDGER}\n")
    LEDGER.parent.mkdir()
    ledger = Ledger(LEDGER)
    ledger.charge([BillBatch("api", 1, [Charge("key-1", "", Bill(3, server_usd_in=0.5))])])
    told = "0 keys, 3 requests and 0.5 dollars of usage, version 3"
    assert run("backup", "copy.sqlite") == (0, f"copy.sqlite has {told}.\n")
    assert run("check", "copy.sqlite") == (0, f"copy.sqlite is whole: {told}.\n")
    code, said = run("restore", "copy.sqlite")
    assert (code, "stop it first" in said) == (1, True)
    ledger.close()
    assert run("restore", "copy.sqlite") == (0, f"{LEDGER} has {told}.\n")
    assert run("restore", "copy.sqlite", "--ledger", "other.sqlite") == (0, f"other.sqlite has {told}.\n")
