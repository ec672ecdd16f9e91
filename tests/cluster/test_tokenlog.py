from __future__ import annotations

import pytest

from cluster.tokenlog import Origin, TokenLog


def test_appends_in_order() -> None:
    log = TokenLog()
    log.append(0, [5, 6], [Origin.DRAFT, Origin.CORRECTED], 1.0)
    log.append(2, [7], [Origin.DRAFT], 2.5)
    assert list(log) == [(5, Origin.DRAFT), (6, Origin.CORRECTED), (7, Origin.DRAFT)]
    assert log.times_s == [1.0, 1.0, 2.5]
    assert log.by_origin() == {"draft": 2, "corrected": 1}


@pytest.mark.parametrize("position", [0, 2])
def test_refuses_gaps_and_repetitions(position: int) -> None:
    log = TokenLog()
    log.append(0, [5], [Origin.CLOUD], 0.0)
    with pytest.raises(ValueError, match="holds 1 tokens"):
        log.append(position, [6], [Origin.CLOUD], 0.0)
    assert len(log) == 1


def test_refuses_tokens_without_origin() -> None:
    log = TokenLog()
    with pytest.raises(ValueError, match="zip"):
        log.append(0, [5, 6], [Origin.CLOUD], 0.0)
    assert len(log) == 0
