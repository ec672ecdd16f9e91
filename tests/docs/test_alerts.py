"""docs/alerts.yaml: Prometheus loads it, what it asks for is there, and the guide says what to do about each alert."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.samples import Sample

from tests.docs.documents import ROOT, table

FILE = ROOT / "docs" / "alerts.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}


def selectors(expression: Any) -> Iterator[Any]:
    """Yield the series that a parsed expression asks for."""
    match expression:
        case promql.VectorSelector():
            yield expression
        case promql.MatrixSelector():
            yield expression.vector_selector
        case promql.BinaryExpr():
            yield from (each for side in (expression.lhs, expression.rhs) for each in selectors(side))
        case promql.Call():
            yield from (each for argument in expression.args for each in selectors(argument))
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr():
            yield from selectors(expression.expr)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_what_a_rule_asks_for_is_there(rule: dict[str, Any], exposed: list[Sample]) -> None:
    asked = list(selectors(promql.parse(rule["expr"])))
    assert asked
    for series in asked:
        if series.name in RECORDED:
            continue
        wanted = [matcher for matcher in series.matchers.matchers if matcher.name != "status"]
        found = [sample for sample in exposed if sample.name == series.name]
        assert found, series.name
        for matcher in wanted:
            assert matcher.value in {sample.labels[matcher.name] for sample in found}
    for grouped in re.findall(r"by \((\w+)\)", rule["expr"]):
        assert all(grouped in sample.labels for sample in exposed if sample.name in {s.name for s in asked})


def test_the_guide_has_every_alert() -> None:
    rows = table(ROOT / "docs" / "observability.md", "Alerts")
    assert {row[0].strip("`"): row[1] for row in rows} == {
        name: rule["labels"]["severity"] for name, rule in ALERTS.items()
    }


PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus has it)")
@pytest.mark.parametrize("arguments", [("check", "rules", FILE), ("test", "rules", "alerts_test.yaml")])
def test_prometheus_takes_them(arguments: tuple[str, ...]) -> None:
    said = subprocess.run(
        [str(PROMTOOL), *map(str, arguments)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
