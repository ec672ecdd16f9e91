"""A device's loaded model: when others use it, and when another one is worth loading."""

from __future__ import annotations

import msgspec
import pytest

from tandem.cluster.devices.record import DeviceRecord, ModelRecord
from tandem.deployments.modes.sketch.loaded_models import TOLD_S, DeviceModels

SMALL, LARGE = (ModelRecord(name=name, vocabulary="v", load_s=0.5) for name in ("small", "large"))
RECORD = DeviceRecord(
    name="d", address="a", profile="p", model="large", vocabulary="v", models=(SMALL, LARGE)
)


def models(record: DeviceRecord = RECORD) -> DeviceModels:
    return DeviceModels(record, (SMALL, LARGE))


def test_it_works_for_others_if_it_says_so_long_after_the_last_expansion() -> None:
    its = models(msgspec.structs.replace(RECORD, sessions=1))
    assert its.busy_otherwise(0.0), "nothing was expanded here"
    its.freed_s = 10.0
    assert not its.busy_otherwise(10.0 + TOLD_S), "it may not have told yet that it is idle"
    assert its.busy_otherwise(10.1 + TOLD_S)
    assert not models().busy_otherwise(1e9)


@pytest.mark.parametrize(
    ("remaining_s", "budget_s"),
    [
        ({"small": 0.0, "large": 9.0}, 1.0),
        ({"small": 0.1, "large": 0.0}, 1.0),
        ({"small": 0.1, "large": 9.0}, 0.0),
    ],
)
def test_while_a_time_is_unknown_the_loaded_one_is_kept(
    remaining_s: dict[str, float], budget_s: float
) -> None:
    its = models()
    assert its.choose({"small", "large"}, remaining_s, budget_s, full=True) == "large"
    assert its.choose({"small"}, remaining_s, budget_s, full=True) == "small", "it is the one that is able"
    assert its.loaded == "small"


def test_a_job_that_would_be_late_gets_the_smaller_one() -> None:
    its = models()
    assert its.choose({"small", "large"}, {"small": 0.1, "large": 9.0}, 1.0, full=True) == "small"
    assert its.loaded == "small"


def test_records_that_are_older_than_the_choice_change_nothing() -> None:
    its = models()
    its.choose({"small"}, {"small": 0.1, "large": 9.0}, 1.0, full=True)
    its.see(RECORD, (SMALL, LARGE))
    assert its.loaded == "small"
    its.see(msgspec.structs.replace(RECORD, model="small"), (SMALL, LARGE))
    its.see(RECORD, (SMALL, LARGE))
    assert its.loaded == "large", "others wanted it"


def test_a_loaded_model_that_does_not_expand() -> None:
    its = models(msgspec.structs.replace(RECORD, model="other"))
    assert its.names == ("small", "large")
    assert its.loaded == "other"
    assert its.choose({"small", "large"}, {"small": 0.0, "large": 0.0}, 0.0, full=False) in its.names
