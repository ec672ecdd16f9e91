"""Metrics under vLLM's names: docs/metrics.md has each one of vLLM 0.32's, served here or not, and why not."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tandem.deployments.control.metrics import Metrics
from tandem.deployments.routing.directory import Snapshot
from tests.docs.documents import ROOT, table

GUIDE = ROOT / "docs" / "metrics.md"
KINDS = re.compile(r'self\._(gauge|counter|histogram)_cls\(\s*name="vllm:(\w+)"')


def bare(metric: str, kind: str) -> str:
    """Return vLLM's name of a metric of the exposition."""
    name = metric.strip("`").removeprefix("vllm:")
    return name.removesuffix("_total") if kind == "counter" else name


SERVED = {bare(metric, kind): kind for metric, kind, *_ in table(GUIDE, "Those that there are")}
"""Kinds of the metrics that are served, by vLLM's name."""
NOT_SERVED = {bare(metric, ""): why for metric, why in table(GUIDE, "Those that there are not")}
"""Why vLLM's other metrics are not, by its name."""


def test_the_exposition_has_exactly_these_of_vllms_names() -> None:
    text = Metrics({"tandem": Snapshot}).exposition()[0].decode()
    shown = re.findall(r"^# TYPE (vllm:\w+) (\w+)", text, re.MULTILINE)
    assert {bare(name, kind): kind for name, kind in shown} == SERVED


def test_of_each_other_one_it_says_why() -> None:
    assert not SERVED.keys() & NOT_SERVED.keys()
    assert all(NOT_SERVED.values())
    assert f"{len(SERVED)} of the {len(SERVED) + len(NOT_SERVED)} that" in (
        ROOT / "docs" / "operations.md"
    ).read_text(encoding="utf-8")


@pytest.mark.vllm
def test_the_two_tables_are_all_of_vllms_names_and_their_kinds() -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "v1"
    sources = [
        (folder / part / name).read_text(encoding="utf-8")
        for part, name in (("metrics", "loggers.py"), ("spec_decode", "metrics.py"))
    ]
    named = {name for source in sources for name in re.findall(r'"vllm:(\w+)"', source)}
    assert {name for name in named if not name.startswith("diffusion_")} == SERVED.keys() | NOT_SERVED.keys()
    kinds = {name: kind for source in sources for kind, name in KINDS.findall(source) if name in SERVED}
    assert len(kinds) > 20
    assert kinds == {name: SERVED[name] for name in kinds}
