"""An application for the tests of deployments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import deployed
from tests.conftest import Running

PAIR = {"replicas": 2, "engine": {"kind": "null", "mistake_every": 5}}


@pytest.fixture(scope="session")
def profiles_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file in which the routers of `pairs` keep their measurements."""
    return tmp_path_factory.mktemp("profiles") / "profiles.json"


@pytest.fixture(scope="session")
def pairs(application: Running, profiles_file: Path) -> Iterator[str]:
    """The address of an application named "pairs" with two verifiers and two drafters without models, which are taken
    in turn, an expander, and the middle of the embedded target after two layers."""
    settings = {
        "verifier": PAIR,
        "drafter": PAIR,
        "expander": {"engine": {"kind": "null"}},
        "middle": {"replicas": 1, "engine": {"model": "target", "first": 2}},
        "router": {"routing": {"name": "round_robin"}},
        "sketch": {"profiles": profiles_file, "models": {"null": {"capability": 1.0}}},
    }
    with deployed(settings, "pairs", application) as address:
        yield address
