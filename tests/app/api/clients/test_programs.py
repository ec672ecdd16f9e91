"""Programs of other people, unmodified, against the API in every mode: see docs/compatibility.md.

They have packages of their own, as users have: `make clients` installs them.
"""

from __future__ import annotations

import pytest

from tests.app.api.clients.compatibility import REAL, SCRIPTED, recorded, section
from tests.app.api.clients.pairs import NO_REAL_PAIR
from tests.app.api.clients.run_programs import PROGRAMS, PYTHON

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients")


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.timeout(SCRIPTED.timeout_s + 30)
async def test_what_a_client_can_do_is_what_the_table_says(program: str) -> None:
    """Otherwise, if it is right: python -m tests.app.api.clients.compatibility."""
    lines = await SCRIPTED.lines(program)
    assert [line for line in lines if line.outcome == "fails"] == []
    assert section(lines) == recorded(program)


@pytest.mark.nightly
@pytest.mark.parametrize("program", REAL.programs)
@pytest.mark.timeout(REAL.timeout_s + 60)
@pytest.mark.skipif(bool(NO_REAL_PAIR), reason=NO_REAL_PAIR)
async def test_what_a_client_can_do_with_a_real_model_is_what_the_table_says(program: str) -> None:
    """Otherwise, if it is right: python -m tests.app.api.clients.compatibility --real."""
    lines = await REAL.lines(program)
    assert section(lines) == recorded(f"{program}{REAL.suffix}"), lines
