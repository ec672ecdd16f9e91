"""Fixtures of the documents' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tandem import policies
from tandem.deployments.control.metrics import Metrics
from tandem.deployments.control.observation import Observation
from tandem.deployments.request.assignment import EndpointInfo, Load
from tandem.deployments.request.forecast import Compared
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import EngineStats
from tandem.engine.distribution import TOKEN_S, Distribution
from tandem.policies.routing.replica import routing
from tests.docs.documents import ROOT, fenced

ADDED = "two_choices"
"""The policy that docs/policies.md adds."""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add its snippet as a module of the package `policies`, for the time of a test."""
    (code,) = fenced(ROOT / "docs" / "policies.md", "python")
    (tmp_path / f"{ADDED}.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    import_module(f"tandem.policies.{ADDED}")
    yield
    del routing._factories[ADDED], sys.modules[f"tandem.policies.{ADDED}"]
    delattr(policies, ADDED)


@pytest.fixture(scope="session")
def exposed() -> list[Sample]:
    """Return samples of every metric, after a request in which everything happened."""
    load = Load.of(EngineStats(waiting=1, blocks_free=2, blocks_total=4), places=8)
    replica = EndpointInfo("verifier 1", "v:1", "verifier", load=load)
    service = EndpointInfo("verifier 2", "v:2", "verifier", refusal="")
    gaps_s = Distribution.over(TOKEN_S)
    gaps_s.add(0.1, TOKEN_S)
    metrics = Metrics({"tandem": lambda: Snapshot(1, {"verifier": (replica, service)})})
    metrics.observe(
        Observation(
            "cloud",
            200,
            prompt_tokens=1,
            origins={"cloud": 2},
            finished=("stop",),
            queue_s=0.0,
            ttft_s=0.1,
            total_s=0.2,
            tpot_s=(0.1,),
            stall_s=0.0,
            counted={("migrations", "cost"): 1},
            key="key-1",
            device="laptop",
            answers=1,
            most_tokens=9,
            answer_tokens=(2,),
            decode_s=(0.1,),
            gaps_s=gaps_s,
            changes=("device",),
            forecasts=(Compared("ttft_s", 1.0, True),),
        )
    )
    families = text_string_to_metric_families(metrics.exposition()[0].decode())
    return [sample for family in families for sample in family.samples]


@pytest.fixture(scope="session")
def shown(exposed: list[Sample]) -> dict[str, set[str]]:
    """Return the labels of every metric."""
    labels: dict[str, set[str]] = {}
    for sample in exposed:
        labels.setdefault(sample.name, set()).update(sample.labels)
    return labels
