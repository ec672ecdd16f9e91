"""`tandem fleet`: what it shows, and the orders that it gives."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tandem.app.cli.main import cli
from tandem.cluster.devices.orders import LinkOrder
from tandem.cluster.link.link import LinkProfile
from tests.app.api.null_backend import NullBackend


def test_orders_and_what_is_told_of_them(
    url: str, backend: NullBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_URL", url)

    def run(*words: str, fails: bool = False) -> str:
        done = CliRunner().invoke(cli, ["fleet", *words])
        assert done.exit_code == int(fails), done.stderr
        return done.stderr if fails else done.stdout

    def states() -> dict[str, str]:
        return {line.split("\t")[0]: line.split("\t")[-1] for line in run("list").splitlines()[1:]}

    assert states()["verifier 1"] == "up"
    assert states()["pixel-2"] == "missing"
    assert "last replica" in run("drain", "verifier 1", fails=True)
    assert run("stop", "pixel-1") == "pixel-1 is stopped.\n"
    assert states()["pixel-1"] == "stopped"
    run("start", "pixel-1")
    run("link", "pixel-1", "--rtt-ms", "50", "--loss", "0.5")
    assert backend.ordered.devices.link("pixel-1") == LinkOrder(profile=LinkProfile(rtt_s=0.05, loss=0.5))
    assert states()["pixel-1"] == "link changed"
    run("link", "pixel-1", "--cut")
    assert states()["pixel-1"] == "link cut"
    run("link", "pixel-1")
    assert states()["pixel-1"] == "up"
