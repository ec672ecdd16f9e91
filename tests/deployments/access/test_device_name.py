"""Allowed names of devices, wherever they are given."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tandem.deployments.access.device_name import device_name
from tandem.deployments.pools.device_hosts import DeviceSettings
from tandem.deployments.request.pools import POOLS


@pytest.mark.parametrize("name", ["a", "7", "Pixel-9_pro.2", "x" * 64, "anything", "device"])
def test_a_name(name: str) -> None:
    assert device_name(name) == name
    assert DeviceSettings(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".key", "a b", "a/b", "../a", "a\n", "käse", "x" * 65, "any", *POOLS]
)
def test_what_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a device|meaning of its own"):
        device_name(name)
    with pytest.raises(ValidationError):
        DeviceSettings(name=name)
