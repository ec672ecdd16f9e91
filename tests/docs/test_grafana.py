"""docs/grafana.json: every metric that the dashboard asks for is there, with the labels it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import table

DOCS = Path(__file__).parents[2] / "docs"
BOARD = json.loads((DOCS / "grafana.json").read_text(encoding="utf-8"))
METRIC = re.compile(r"\b(?:vllm:|tandem_)\w+")


def expressions() -> Iterator[str]:
    """Yield the expressions of all panels and variables."""
    for panel in BOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (v["query"] for v in BOARD["templating"]["list"] if v["type"] == "query")


@pytest.mark.parametrize("expression", list(expressions()))
def test_what_a_panel_asks_for_is_there(expression: str, shown: dict[str, set[str]]) -> None:
    asked = METRIC.findall(expression)
    assert asked
    grouped = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(", ")}
    chosen = set(re.findall(r"{(\w+)=", expression))
    for metric in asked:
        assert metric in shown
        assert grouped | chosen <= shown[metric]


def test_every_metric_has_a_panel(shown: dict[str, set[str]]) -> None:
    asked = {metric for expression in expressions() for metric in METRIC.findall(expression)}
    assert {metric for metric in shown if not metric.endswith(("_sum", "_count"))} == asked


def test_the_operators_guide_explains_every_metric(shown: dict[str, set[str]]) -> None:
    explained = METRIC.findall((DOCS / "operations.md").read_text(encoding="utf-8"))
    rows = table(DOCS / "metrics.md", "Those that there are")
    explained += [metric for row in rows for metric in METRIC.findall(row[0])]
    assert {re.sub("_(bucket|sum|count)$", "", metric) for metric in shown} == set(explained)


def test_the_labels_of_vllms_metrics_are_as_the_guide_says(shown: dict[str, set[str]]) -> None:
    for metric, kind, labels, *_ in table(DOCS / "metrics.md", "Those that there are"):
        sample = metric.strip("`") + ("_count" if kind == "histogram" else "")
        assert set(re.findall(r"`(\w+)`", labels)) == shown[sample]


def test_any_prometheus_will_do() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}

    def sources(of: Any) -> Iterator[object]:
        if isinstance(of, dict):
            yield from (of["datasource"],) if "datasource" in of else ()
            yield from (found for part in of.values() for found in sources(part))
        elif isinstance(of, list):
            yield from (found for part in of for found in sources(part))

    assert all(found == source for found in sources(BOARD))
    assert BOARD["templating"]["list"][0]["name"] == "datasource"


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
