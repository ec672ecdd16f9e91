"""Replicas on the wire: one that cannot start ends without an error of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.deployments.pools.engines import NullSettings, ServiceSettings
from tandem.deployments.pools.replica import EndpointSettings, EngineEndpoint


class Replica(EngineEndpoint):
    """A replica that Serve makes and ends, not Python."""

    def __del__(self) -> None: ...  # type: ignore[override]


async def test_a_replica_that_cannot_start_says_why_and_nothing_else(tmp_path: Path) -> None:
    """Serve ends what it has begun to make."""
    lost = ServiceSettings(
        kind="openai", base_url="http://127.0.0.1:1/v1", model="any", tokenizer=str(tmp_path / "none")
    )
    replica = Replica.__new__(Replica)
    with pytest.raises((OSError, ValueError), match="none"):
        await replica.__init__("verifier", lost, EndpointSettings())  # type: ignore[func-returns-value, misc]
    await EngineEndpoint.__del__(replica)


async def test_it_reports_its_address_until_it_drains() -> None:
    replica = Replica.__new__(Replica)
    await replica.__init__("verifier", NullSettings(kind="null"), EndpointSettings())  # type: ignore[func-returns-value, misc]
    (endpoint,) = await replica.state()
    assert endpoint.address.startswith("127.0.0.1:")
    await EngineEndpoint.__del__(replica)
    assert await replica.state() == []
