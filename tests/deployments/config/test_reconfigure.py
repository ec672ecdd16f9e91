"""Changes in place: taken over as a whole, or not at all."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tandem.deployments.config.reconfigure import in_place
from tandem.deployments.config.settings import GateSettings
from tandem.deployments.control.router import RouterLive

STARTED = RouterLive(router={"wait_s": 7}, gate={"queue": 5})


def test_what_is_not_said_or_null_stays_as_it_was_started_with() -> None:
    now = in_place(
        STARTED, {"gate": {"queue_s": 3}, "router": None, "racing": {"dispatch": {"name": "device"}}}
    )
    assert now is not None
    assert (now.router, now.gate) == (STARTED.router, GateSettings(queue_s=3))
    assert now.racing.dispatch.name == "device"  # type: ignore[attr-defined]  # a field of each mode's


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"rooter": {}}, "rooter: no such key, did you mean router?"),
        ({"router": {"routing": {"name": "magic"}}}, "magic"),
        ({"gate": {"queue_s": 1, "queue": -1}}, "gate.queue"),
    ],
)
def test_nonsense_changes_nothing(
    config: dict[str, Any], complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="ray.serve"):
        assert in_place(STARTED, config) is None
    assert complaint in caplog.text
