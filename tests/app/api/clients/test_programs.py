"""Programs of other people, unmodified, against the API in every mode: see docs/compatibility.md.

They have packages of their own, as users have: `make clients` installs them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.api.clients.compatibility import recorded, section
from tests.app.api.clients.run_programs import PROGRAMS, PYTHON, TIMEOUT_S, Served, run, serving_all


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[dict[str, Served]]:
    async with serving_all(tmp_path) as found:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 30)
@pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: make clients")
@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_a_client_can_do_is_what_the_table_says(program: str, served: dict[str, Served]) -> None:
    """Otherwise, if it is right: python -m tests.app.api.clients.compatibility."""
    lines = await run(program, served)
    assert [line for line in lines if line.outcome == "fails"] == []
    assert section(lines) == recorded(program)
