"""The listing of settings: complete, told in words, and the same as in the documentation."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from tandem.app.cli.config import markdown, settings
from tandem.app.cli.main import cli
from tandem.app.settings import Settings
from tandem.deployments.docstrings import meanings
from tandem.policies.routing.replica import routing
from tandem.policies.speculation.window import window

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


def test_every_setting_is_explained() -> None:
    found = {setting.key: setting for setting in settings(Settings)}
    assert all(setting.meaning for setting in found.values())
    assert found["limits.step_s"].unit == "seconds"
    assert found["limits.step_s"].default == f"{Settings().limits.step_s:g}"
    assert found["verifier.replicas"].allowed == "a whole number or null ≥ 0 ≤ 1000"
    assert found["hosts[].devices[].link.up_mbit_per_s"].default == "null"
    assert found["hosts[].devices[].name"].default == ""
    for family, key in ((window, "window"), (routing, "router.routing")):
        assert all(name in found[key].allowed for name in family)


def test_a_part_is_listed_once() -> None:
    found = {setting.key: setting.meaning for setting in settings(Settings)}
    assert found["drafter"] == found["expander"] == "as verifier"
    assert len(set(found)) == sum(1 for _ in settings(Settings))


def test_continued_lines_belong_to_the_setting_above() -> None:
    assert meanings(type(Settings().limits))["step_s"].endswith("the reader's buffer is low.")


def test_the_documentation_has_the_same() -> None:
    """Otherwise: `tandem config --markdown`, into docs/settings.md."""
    assert DOCS.read_text(encoding="utf-8").endswith("\n\n" + markdown(settings(Settings)))


def test_the_command() -> None:
    run = CliRunner().invoke(cli, ["config", "--explain"])
    assert run.exit_code == 0
    assert "limits.step_s: 30" in run.stdout
    assert "drafter: as verifier" in run.stdout
    listed = json.loads(CliRunner().invoke(cli, ["config", "--json"]).stdout)
    assert [each["key"] for each in listed] == [setting.key for setting in settings(Settings)]
