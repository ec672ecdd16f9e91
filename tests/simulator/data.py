"""The public data set, for tests that need it."""

from __future__ import annotations

import pytest

from tandem.simulator.hardware import data_folder

DATA = data_folder()
needs_data = pytest.mark.skipif(DATA is None, reason="the public profiles are not on this machine")
