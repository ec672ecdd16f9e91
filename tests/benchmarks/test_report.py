"""The last line is JSON whatever the figures are."""

from __future__ import annotations

import json
import math

import pytest

from tandem.benchmarks import report


def test_figures_are_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    report.figures("some", {"a": 1.5, "sure": True, "many": [1.0, 2.0], "never": math.inf, "none": math.nan})
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        "benchmark": "some",
        "figures": {"a": 1.5, "sure": True, "many": [1.0, 2.0], "never": None, "none": None},
    }
