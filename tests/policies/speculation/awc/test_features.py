"""Features of the network by hand."""

from __future__ import annotations

from math import log

import pytest

from tandem.policies.speculation.awc.features import features
from tandem.policies.speculation.window import WindowState

KNOWN = WindowState(
    queue=4.0, acceptance=0.6, rtt_s=0.04, tpot_s=0.02, previous=6, alpha=0.7, judged=9, prior=0.5,
    verify_s=0.05, draft_s=0.01, fused_s=0.03, verify_least_s=0.04, fused_least_s=0.025,
)  # fmt: skip


def test_of_a_pair_that_is_known() -> None:
    seen, expected = features(KNOWN)
    alpha = (0.5 * 6 + 0.7 * 9) / (6 + 9)
    assert seen == pytest.approx(
        [
            0.5 * log(4.0), 0.6, 0.5 * log(2.0), 0.0, 0.5, alpha, log(10.0) - 3.0,
            0.5 * log(0.8), 0.5 * log(0.2), 0.5 * log(0.6), 0.5 * log(1.25), 0.5 * log(1.2),
        ]
    )  # fmt: skip
    drafted = [
        log((0.04 + 0.05 + 0.01 * window) / sum(alpha**n for n in range(window + 1)))
        for window in range(2, 13)
    ]
    costs = [log(0.03), *drafted]
    assert expected == pytest.approx([cost - min(costs) for cost in costs])


def test_of_a_new_pair() -> None:
    """Times that are not known are those of the target's tokens, or as good as none."""
    seen, expected = features(WindowState(0.0, 0.02, 0.05, 0.5, 0))
    assert seen == pytest.approx(
        [
            0.0, 0.0, 0.0, 0.5 * log(2.5), 0.0, 2 / 3, -3.0,
            0.5 * log(0.02 / 0.05), 0.5 * log(1e-4 / 0.05), 0.0, 0.0, 0.0,
        ]
    )  # fmt: skip
    windowed = log((0.02 + 0.05 + 2e-4) / (1 + 2 / 3 + 4 / 9))
    assert expected[0] - expected[1] == pytest.approx(log(0.05) - windowed)


def test_no_time_is_less_than_a_tenth_of_a_millisecond() -> None:
    seen, _ = features(WindowState(0.0, 0.0, 0.0, 0.0, 0, verify_least_s=1e-9, fused_least_s=1e-9))
    assert seen[2:4] == pytest.approx([0.5 * log(1e-4 / 0.02)] * 2)
    assert seen[7:] == [0.0] * 5
