"""docs/policies.md: its snippet runs as it stands, and its table names the policies that there are."""

from __future__ import annotations

import re

import pytest

from tandem.deployments.config.settings import RouterSettings
from tandem.policies.routing.replica import ReplicaView
from tests.docs.conftest import ADDED
from tests.docs.documents import ROOT, text
from tests.policies.test_contract import FAMILIES

TEXT = text(ROOT / "docs" / "policies.md")


@pytest.mark.usefixtures("added")
def test_the_snippet_is_a_policy() -> None:
    chosen = RouterSettings.model_validate({"routing": {"name": ADDED, "parameters": {"seed": 7}}})
    policy = chosen.routing.create()
    assert policy.choose([ReplicaView(3)]) == 0
    drawn = [policy.choose([ReplicaView(sessions) for sessions in (9, 1, 5)]) for _ in range(200)]
    assert set(drawn) == {1, 2}, "never the busiest"


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", TEXT, re.MULTILINE))
def test_the_table_names_every_policy(row: tuple[str, str]) -> None:
    family, names = row
    assert re.findall(r"`([\w-]+)`", names) == list(FAMILIES[family].registry)
