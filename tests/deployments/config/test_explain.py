"""Mistakes in settings, in one line, with the nearest key there is."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tandem.app.settings import Settings
from tandem.deployments.config.explain import explain


def told(args: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as mistake:
        Settings.model_validate(args)
    message = explain(mistake.value, Settings)
    assert "\n" not in message
    assert "pydantic" not in message
    return message


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ({"verifer": {}}, ["verifer: no such key, did you mean verifier?"]),
        ({"verifier": {"replica": 2}}, ["verifier.replica:", "did you mean replicas?", "allowed: replicas"]),
        (
            {"verifier": {"engine": {"kind": "torch", "modle": "x"}}},
            ["modle: no such key, did you mean model?", "kv_blocks"],
        ),
        (
            {"verifier": {"engine": {"kind": "null", "capcity": 2}}},
            ["capcity: no such key, did you mean capacity?"],
        ),
        (
            {"hosts": [{"devices": [{"name": "a", "link": {"rtt": 5}}]}]},
            ["hosts.0.devices.0.link.rtt: no such key, did you mean rtt_ms?"],
        ),
        ({"limits": {"step_s": -1}}, ["limits.step_s:", "greater than 0", "not -1"]),
        ({"window": {"name": "guess"}}, ["window:", "guess", "static"]),
        ({"hosts": [{}]}, ["hosts.0.devices: is missing"]),
        (
            {"verifier": {"autoscaling": {"max_replica": 4}}},
            ["verifier.autoscaling.max_replica: no such key, did you mean max_replicas?"],
        ),
    ],
)
def test_what_is_wrong_and_what_is_allowed(args: dict[str, Any], parts: list[str]) -> None:
    message = told(args)
    for part in parts:
        assert part in message, message


def test_a_token_is_not_shown() -> None:
    assert "5551234" not in told({"endpoint": {"token": 5551234}})
