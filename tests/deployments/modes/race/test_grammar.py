"""Races of answers with a form."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from tandem.deployments.request.job import Job
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import Grammar, Sampling
from tests.deployments.modes.race.test_mode import SERVER_ONLY, BothWays, answer, race
from tests.engine.torch.engines import Engines, tokenizer
from tests.engine_contract import BEFORE

DIGITS = Grammar("regex", "[0-3]{4}(,[4-7]{3})+")


@pytest.mark.parametrize("seed", [None, 3])
async def test_a_form_goes_on_where_an_answer_is_handed_over(tmp_path: Path, seed: int | None) -> None:
    """In the middle of its parts, to a model that is another."""
    text = tokenizer()
    engines = Engines(tmp_path)
    server, device = engines.start(seed=1, text=text), engines.start(seed=2, text=text)
    sampling = Sampling(20, temperature=float(seed is not None), seed=seed or 0, grammar=DIGITS)
    job = Job(11, tuple(BEFORE), sampling, mode="race", device="phone")
    at = range(1, 20)
    with (
        patch("tandem.deployments.modes.race.mode.Race", BothWays),
        patch("tests.deployments.modes.race.test_mode.PROMPT", tuple(BEFORE)),
    ):
        ids, origins, _ = await answer(race(server, device, SERVER_ONLY, at), job)  # type: ignore[arg-type]
    assert {Origin.CLOUD, Origin.DEVICE} <= set(origins)
    said = text.shown_bytes(ids).decode()
    assert re.fullmatch("[0-3]{4}(,[4-7]{3})*(,[4-7]{0,3})?", said)
    assert "," in said
    await engines.close()
