"""Devices that dial in, in virtual time: what is promised to them holds, and what breaks it is seen."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest

from tandem.cluster.wire.client import Connection
from tandem.cluster.wire.resume_buffer import ResumeBuffer
from tandem.deployments.gateway.connected_devices import ConnectedDevices
from tandem.deployments.gateway.metering import CountedSession
from tandem.simulator.chaos.dialled import play_dialled, scenario
from tests.effort import tried

SEEDS = [seed for seed in tried(range(100), range(600)) if scenario(seed)[0]]
BLIND_SEEDS = range(2000, 2200)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # see `breaks`


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Every fault is logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_promises_hold(tmp_path: Path) -> None:
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        assert not play_dialled(seed, tmp_path / str(seed)).broken, seed


def test_a_seed_replays(tmp_path: Path) -> None:
    seen = []
    for again in ("first", "second"):
        (tmp_path / again).mkdir()
        answers = play_dialled(SEEDS[0], tmp_path / again).answers
        seen.append([(answer.ids, answer.times_s, answer.failure) for answer in answers])
    assert seen[0] == seen[1] != []


def breaks(promise: str, seed: int, folder: Path) -> bool:
    """Whether the sabotage of a test is seen to break a promise, see test_promises."""
    for played in (seed, *BLIND_SEEDS):
        ledger = folder / str(played)
        ledger.mkdir(exist_ok=True)
        broken = "\n".join(play_dialled(played, ledger).broken)
        gc.collect()  # what hangs there has no other end, and complains of it here
        if promise in broken:
            return True
    return False


def test_a_frame_that_is_lost_at_a_resumption_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ResumeBuffer, "missing", lambda buffer: b"".join(list(buffer._kept)[1:]))
    assert breaks("has other tokens", 2050, tmp_path)


def test_resumptions_that_send_nothing_again_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ResumeBuffer, "missing", lambda buffer: b"")
    assert breaks("has other tokens", 2050, tmp_path)


def test_a_gateway_that_forgets_a_device_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that takes a program that dials in again for the one before."""
    arrived, names = ConnectedDevices.arrived, WeakKeyDictionary[ConnectedDevices, set[str]]()

    def arrives(devices: ConnectedDevices, connection: Connection) -> None:
        seen = names.setdefault(devices, set())
        if (name := devices._greeted[connection].name) not in seen:
            seen.add(name)
            arrived(devices, connection)

    monkeypatch.setattr(ConnectedDevices, "arrived", arrives)
    assert breaks("nobody knows it", 2021, tmp_path)


def test_bills_that_a_killed_gateway_takes_along_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(CountedSession, "_tell_soon", lambda session: None)
    assert breaks("are due", 2050, tmp_path)


def test_answers_that_a_killed_gateway_breaks_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tandem.deployments.gateway.client.BACK_S", 0.01)
    assert breaks("did not come whole", 2050, tmp_path)
