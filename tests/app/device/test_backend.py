"""What stands behind a device's API, without a cloud."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.app.device.backend import DeviceBackend
from tandem.app.device.settings import DeviceProgram
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.access.accounts import ANONYMOUS
from tandem.deployments.access.keys import KeyRefused
from tandem.deployments.gateway.client import Uplink
from tandem.deployments.gateway.messages import Registered
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import UnknownMode
from tandem.engine import family
from tandem.engine.base import EngineStopped, InvalidRequest
from tandem.engine.null_engine import NullEngine
from tandem.engine.tokenizer import Tokenizer
from tests.app.device.test_settings import LEAST


@pytest.fixture
def uplink() -> Uplink:
    settings = DeviceProgram.model_validate(LEAST)
    device = Device(NullEngine(), load_profile("native"))
    return Uplink(settings.connect, "key", device, lambda: device.record(""), settings=settings.wire())


@pytest.fixture
def backend(uplink: Uplink) -> DeviceBackend:
    """Of a device whose own model is not split."""
    device, speaks = Device(NullEngine(), load_profile("native")), Tokenizer.load(family.path("target"))
    settings = DeviceProgram.model_validate(LEAST)
    return DeviceBackend(settings, device, lambda: device.record(""), speaks, None, speaks, uplink)


async def test_who_asks_is_the_devices_key(backend: DeviceBackend, uplink: Uplink) -> None:
    """As soon as the cloud has said which that is; a request may name the device, or not."""
    caller = await backend.caller(None)
    assert caller is not None
    assert caller.account == ANONYMOUS
    uplink.registered = Registered("laptop", "key-1")
    for hashed in (None, "whatever key a client sends"):
        caller = await backend.caller(hashed)
        assert caller is not None
        assert (caller.account, caller.at("laptop").account, caller.keyed) == ("key-1", "key-1", False)
    with pytest.raises(KeyRefused):
        await backend.account("key-2")


async def test_it_sends_tokens_to_those_alone_who_know_them(backend: DeviceBackend) -> None:
    verifier = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "large", "another")
    with pytest.raises(InvalidRequest, match="another vocabulary"):
        await backend._dial(verifier)
    with pytest.raises(EngineStopped, match="no connection"):
        await backend._dial(replace(verifier, vocabulary=backend.models()[0].vocabulary))


async def test_modes_that_it_drives(backend: DeviceBackend) -> None:
    for mode in ("cloud", "device", "speculative", "race"):
        backend.check(mode)
    for mode in ("split", "sketch"):
        with pytest.raises(UnknownMode):
            backend.check(mode)
