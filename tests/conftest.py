"""Fixtures of all tests: one Ray for the whole session, with the application of the checked-in YAML on it."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tandem.app.cli.server.local_ray import ENVIRONMENT, LocalRay, free_port, local_ray
from tandem.engine.packages import VLLM
from tests.order import pytest_configure  # noqa: F401
from tests.virtual import in_virtual_time

gc.disable()  # until everything is imported
os.environ.update(ENVIRONMENT)  # before any test module imports Ray
# Before numpy and torch: one thread each, whatever a test asks for. Two that wait for each other on a core that is
# busy with other tests take 30 times as long as one.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}

# What a machine is busy with says nothing about the code: neither a test's time nor that of making its examples, the
# first of which on a clean checkout waits for a table of Unicode. Examples are the same in every run;
# `pytest --hypothesis-profile nightly` draws new ones, and prints what repeats a failure.
settings.register_profile(
    "few",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
    max_examples=20,
)
settings.register_profile(
    "nightly", settings.get_profile("few"), derandomize=False, print_blob=True, max_examples=400
)
settings.load_profile("few")

WIRE_TOKEN = "for these tests only"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need Ray go to one process (`--dist loadgroup`), so that one Ray is enough; vLLM's likewise."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ray"))
        if item.get_closest_marker("vllm"):
            item.add_marker("slow")
            item.add_marker(pytest.mark.xdist_group("vllm"))
            item.add_marker(
                pytest.mark.skipif(VLLM.installed() is None, reason="vLLM is not installed: make vllm")
            )
        if item.get_closest_marker("llamacpp"):
            item.add_marker("slow")
            missing = find_spec("llama_cpp") is None or find_spec("gguf") is None
            item.add_marker(pytest.mark.skipif(missing, reason="llama.cpp is not installed: make llamacpp"))


_last_with_ray: list[pytest.Item] = []


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """End Ray with the last test that uses it: its processes would take a part of what the others have."""
    if "PYTEST_XDIST_WORKER" in os.environ and [item] == _last_with_ray and isinstance(item, pytest.Function):
        item._fixtureinfo.name2fixturedefs["cluster"][-1].finish(item._request)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of the searches for garbage, which take a tenth of the time otherwise."""
    gc.freeze()
    gc.enable()
    _last_with_ray[:] = [item for item in session.items if "cluster" in getattr(item, "fixturenames", ())][
        -1:
    ]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Tests marked `virtual_time` run in it, before pytest-asyncio gives them a real loop."""
    made = yield
    for item in made if isinstance(made, list) else ():
        if isinstance(item, pytest.Function) and item.get_closest_marker("virtual_time"):
            property_test = getattr(item.obj, "hypothesis", None)
            if property_test and iscoroutinefunction(property_test.inner_test):
                property_test.inner_test = in_virtual_time(property_test.inner_test)
            elif iscoroutinefunction(item.obj):
                item.obj = in_virtual_time(item.obj)
    return made


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use an empty cache, so that no earlier entry hides a fault."""
    os.environ["TANDEM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def serve_log() -> Iterator[list[logging.LogRecord]]:
    """Yield the records of Serve's log, at the level that Serve sets. (It hides them from `caplog` once it is
    imported.)"""
    logger, kept = logging.getLogger("ray.serve"), _Kept()
    level = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.INFO)
    yield kept.records
    logger.removeHandler(kept)
    logger.setLevel(level)


@dataclass(frozen=True)
class Running:
    """The application. address: of its API; token: what its endpoints ask for."""

    address: str
    token: str


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalRay]:
    """The one Ray of these tests. Ray keeps the first token that a process presents, so a second cluster
    in this process would refuse it."""
    with local_ray() as ray:
        yield ray


@pytest.fixture(scope="session")
def application(cluster: LocalRay, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """The application as `make up` deploys it, on a free port, with the embedded models. What a request leaves open is
    not chosen by what others have taught."""
    from tandem.app.cli.server.up import CONFIG, deploy, wait_until_ready

    deployment = yaml.safe_load(CONFIG.read_text())
    deployment["http_options"]["port"] = port = free_port()
    arguments = deployment["applications"][0]["args"]
    arguments["endpoint"] = {"token": WIRE_TOKEN}
    arguments["router"] = {"collaboration": {"name": "explicit"}}
    arguments["ledger"] = {"path": str(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")}
    deploy(deployment, cluster.dashboard)
    address = f"http://127.0.0.1:{port}"
    wait_until_ready(address, cluster.dashboard, print)
    return Running(address, WIRE_TOKEN)
