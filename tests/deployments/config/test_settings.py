from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tandem.deployments.config.settings import LinkSettings
from tandem.deployments.pools.device_hosts import DeviceSettings


def test_a_link_as_people_write_it_comes_in_seconds_and_bytes() -> None:
    link = LinkSettings.model_validate(
        {
            "rtt_ms": 20,
            "jitter_ms": 5,
            "up_mbit_per_s": 8,
            "rtt_trace": [[0, 20], [60, 80]],
            "down_trace": [[0, 16], [1, 8]],
        }
    )
    profile = link.profile(seed=3)
    assert (profile.rtt_s, profile.jitter_s, profile.seed) == (0.02, 0.005, 3)
    assert (profile.up_bytes_per_s, profile.down_bytes_per_s) == (1e6, None)
    assert profile.rtt_trace == ((0, 0.02), (60, 0.08))
    assert (profile.up_trace, profile.down_trace) == ((), ((0, 2e6), (1, 1e6)))


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ({"rtt_ms": 5, "jitter_ms": 3}, r"at most half the round-trip time \(5 ms\), not 3"),
        ({"rtt_ms": 50, "jitter_ms": 3, "rtt_trace": [[0, 50], [9, 4]]}, r"\(4 ms\), not 3"),
        ({"rtt_trace": [[1, 50]]}, "must begin at 0"),
        ({"up_mbit_per_s": 0}, "greater than 0"),
        ({"up_trace": [[0, 8], [1, 0]]}, "end with a rate above 0"),
    ],
)
def test_an_impossible_link_is_refused(link: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        LinkSettings.model_validate(link)


def test_no_two_devices_links_jitter_alike() -> None:
    a, again, b = (DeviceSettings(name=name).hosted().link.seed for name in "aab")
    assert a == again != b
