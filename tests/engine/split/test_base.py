"""Parts that do not make one model are refused, in one line."""

from __future__ import annotations

import pytest

from tandem.engine.base import EngineInfo, SplitInfo
from tandem.engine.split.base import SplitMismatch, check_fit

SPLIT = SplitInfo("0123456789abcdef", 2, 12, 192)


def info(split: SplitInfo | None) -> EngineInfo:
    return EngineInfo("some", "words", 100, 512, 2, split=split)


def test_parts_of_one_model_fit() -> None:
    check_fit(info(SPLIT), info(SPLIT))


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (None, "some is no part of a split model"),
        (SplitInfo("0123456789abcdee" * 2, 2, 12, 192), "cut from the model 0123456789ab, the middle"),
        (SplitInfo(SPLIT.checksum, 3, 12, 192), "ends before layer 2 of 12 .* begins at 3 of 12"),
        (SplitInfo(SPLIT.checksum, 2, 13, 192), "12 .* of 13"),
        (SplitInfo(SPLIT.checksum, 2, 12, 256), r"192 wide.*256 wide"),
    ],
)
def test_others_do_not(theirs: SplitInfo | None, message: str) -> None:
    with pytest.raises(SplitMismatch, match=message) as refused:
        check_fit(info(SPLIT), info(theirs))
    assert "\n" not in str(refused.value)
