"""The family's `small`, as the model that writes sketches and as the one that expands them."""

from __future__ import annotations

import pytest
import torch

from tandem.engine.family import path
from tandem.training.family.models import load
from tandem.training.sketch.score import Expander


@pytest.fixture(scope="session")
def small() -> Expander:
    torch.set_num_threads(1)
    return Expander(*load(path("small")))
