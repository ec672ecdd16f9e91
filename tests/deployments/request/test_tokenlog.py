from __future__ import annotations

import pytest

from tandem.deployments.request.tokenlog import Origin, TokenLog


def test_appends_in_order() -> None:
    log = TokenLog()
    log.append(0, [5, 6], [Origin.DRAFT, Origin.CORRECTED])
    log.append(2, [7], [Origin.DRAFT])
    assert log == TokenLog([5, 6, 7], [Origin.DRAFT, Origin.CORRECTED, Origin.DRAFT])
    assert log.by_origin() == {"draft": 2, "corrected": 1}


@pytest.mark.parametrize("position", [0, 2])
def test_refuses_gaps_and_repetitions(position: int) -> None:
    log = TokenLog()
    log.append(0, [5], [Origin.CLOUD])
    with pytest.raises(ValueError, match="holds 1 tokens"):
        log.append(position, [6], [Origin.CLOUD])
    assert len(log) == 1


def test_refuses_tokens_without_origin() -> None:
    log = TokenLog()
    with pytest.raises(ValueError, match="2 tokens with 1 origins"):
        log.append(0, [5, 6], [Origin.CLOUD])
    assert len(log) == 0
