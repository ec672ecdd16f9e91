"""Measured speeds outlive a router; a file that cannot be read is no failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from tandem.deployments.modes.sketch.profiles import VERSION, Profiles, read, write
from tandem.deployments.modes.sketch.questions import PlaceReport, PlanRequest
from tests.deployments.modes.sketch.test_scheduler import device, made, placed
from tests.virtual import in_virtual_time

KNOWN = Profiles(target_token_s=0.05, devices={"laptop": {"tiny": 0.001, "small": 0.002}})


def test_what_is_written_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "state" / "profiles.json"
    assert read(file) == Profiles(), "the first time"
    write(file, Profiles())
    write(file, KNOWN)
    assert read(file) == KNOWN
    assert [path.name for path in file.parent.iterdir()] == ["profiles.json"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (msgspec.json.encode(Profiles(version=VERSION + 1)), f"version {VERSION + 1}, not {VERSION}"),
        (msgspec.json.encode(KNOWN)[:-5], "truncated"),
        (b'{"version": 1, "devices": {"laptop": {"tiny": -1.0}}}', "devices"),
        (b'{"version": 1, "more": 2}', "more"),
        (b"\xff\xfe", ""),
        (b"", ""),
    ],
)
def test_what_is_broken_or_of_another_version_is_ignored(
    content: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "profiles.json"
    file.write_bytes(content)
    assert read(file) == Profiles()
    (record,) = caplog.records
    assert str(file) in record.getMessage()
    assert why in record.getMessage()


def test_what_cannot_be_read_or_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert read(folder) == Profiles()
    write(folder, KNOWN)
    assert len(caplog.records) == 2
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"], "nothing is left beside it"


@in_virtual_time
async def test_the_first_decisions_of_a_new_router_are_not_blind(tmp_path: Path) -> None:
    with patch("asyncio.to_thread", at_once):  # virtual time has no threads
        await not_blind(tmp_path / "profiles.json")


async def at_once(call: Callable[..., object], *args: object) -> object:
    return call(*args)


async def not_blind(file: Path) -> None:
    unsaid = device("laptop", token_s=0.0)  # at its machine's own speed
    first, _ = made([unsaid], profiles=file)
    await first.recall()
    await first.plan(PlanRequest(1, 400, 0.05))
    place = await placed(first)
    first.free(PlaceReport(place.id, tokens=100, longest=100, seconds=1.5))
    await first.keep()
    second, _ = made([unsaid], profiles=file)
    await second.recall()
    assert (await placed(second)).place.token_s == pytest.approx(0.015)
    plan = await second.plan(PlanRequest(1, 400))
    assert plan.sketch
    assert plan.budget_s == pytest.approx(0.05 * (400 - plan.sketch))
    blind, _ = made([unsaid])
    assert not (await blind.plan(PlanRequest(1, 400))).sketch


def test_nothing_is_known_yet() -> None:
    assert Profiles() == Profiles(version=1, target_token_s=0.0, devices={})
