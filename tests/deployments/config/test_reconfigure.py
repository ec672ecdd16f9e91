"""Changes in place: taken over as a whole, or not at all."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tandem.deployments.config.reconfigure import in_place
from tandem.deployments.control.router import RouterChanges


def test_what_is_not_said_is_none() -> None:
    changes = in_place(RouterChanges, {"gate": {"queue_s": 3}})
    assert changes is not None
    assert changes.router is None
    assert changes.gate is not None
    assert changes.gate.queue_s == 3


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
        assert in_place(RouterChanges, config) is None
    assert complaint in caplog.text
