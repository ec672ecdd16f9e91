from __future__ import annotations

import pytest

from cluster.link import LinkProfile
from cluster.simulator.device import HEADER_BYTES, TOKEN_BYTES, Device, SimulatedLink, frame_bytes
from cluster.simulator.hardware import RateTimer


def test_a_link_delays_and_counts() -> None:
    link = SimulatedLink(LinkProfile(rtt_s=0.02, up_bytes_per_s=1000.0))
    assert link.down(1.0, 10) == pytest.approx(1.01)
    size = frame_bytes(10)
    assert size == HEADER_BYTES + 10 * TOKEN_BYTES
    assert link.up(1.0, 10) == pytest.approx(1.01 + size / 1000)
    assert link.sent_bytes == 2 * size
    assert link.waited_s == pytest.approx(size / 1000)


def test_a_device_has_so_many_places_and_one_processor() -> None:
    device = Device("d", RateTimer(100.0, 10.0), SimulatedLink(LinkProfile()), sessions=2)
    first, second, third = device.acquire(), device.acquire(), device.acquire()
    assert (first._fired, second._fired, third._fired) == (True, True, False)
    device.release()
    assert third._fired
    assert device.occupy(1.0, device.prefill_s(50)) == pytest.approx(1.5)
    assert device.occupy(1.2, device.decode_s(3, 50)) == pytest.approx(1.8)  # after the other job
    assert device.prefill_s(0) == 0.0
