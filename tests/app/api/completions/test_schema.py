"""Every reply fits the API's schema, to requests that fit it and to others; schemathesis generates them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

CHECKED = [check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"]
"""Without that check, since a valid request may name an unknown model or exceed the context."""
PATIENT = settings(
    max_examples=settings.default.max_examples // 6,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "least"), [(GenerationMode.POSITIVE, 14), (GenerationMode.NEGATIVE, 7)])
async def test_every_reply_is_as_documented(address: str, mode: GenerationMode, least: int) -> None:
    explored = await asyncio.to_thread(_explore, address, mode)
    assert explored >= least, "operations"


def _explore(address: str, mode: GenerationMode) -> int:
    """Return the number of operations explored; raises what a check finds."""
    explored = 0
    for found in schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations():
        operation = found.ok()

        @PATIENT
        @given(operation.as_strategy(generation_mode=mode))
        def answers(case: Any) -> None:
            if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
                case.body["model"] = "null"  # the only model
            case.call_and_validate(checks=CHECKED)

        try:
            answers()
        except Unsatisfiable:  # no request to it could be invalid
            continue
        explored += 1
    return explored
