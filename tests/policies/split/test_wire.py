"""The number format on the wire follows the link, among those that lose little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.policies.split.wire import LEAST_KEPT, WireFormat, choose_format

FORMATS = [
    WireFormat("float16", 8192, 1.0),
    WireFormat("int8", 4100, 0.999),
    WireFormat("int6", 3023, 0.996),
    WireFormat("int4", 1999, 0.98),
]


def test_a_slow_link_has_the_smallest_that_keeps_the_tokens() -> None:
    assert choose_format(FORMATS, 7.5e6) == "int6"
    assert choose_format(FORMATS, 7.5e6, least_kept=0.9) == "int4"
    assert choose_format(FORMATS[:2], 7.5e6) == "int8", "the middle takes no other"


def test_a_quick_link_loses_nothing() -> None:
    assert choose_format(FORMATS, 1e9) == "float16"
    assert choose_format(FORMATS, 5e7) == "int8"


def test_an_unmeasured_format_is_not_chosen() -> None:
    assert choose_format([FORMATS[0], FORMATS[1]._replace(kept=0.0)], 1e5) == "float16"


@given(st.floats(1e3, 1e10), st.floats(1.0, 100.0))
def test_a_quicker_link_never_loses_more(up_bytes_s: float, times: float) -> None:
    kept = {one.name: one.kept for one in FORMATS}
    slow, quick = (kept[choose_format(FORMATS, speed)] for speed in (up_bytes_s, up_bytes_s * times))
    assert LEAST_KEPT <= slow <= quick


def test_what_a_link_just_carries_and_a_format_just_keeps_is_enough() -> None:
    """A token's upload takes a tenth of a millisecond, and 995 of 1,000 tokens are kept."""
    formats = [WireFormat("exact", 1000, 1.0), WireFormat("small", 500, 0.995), WireFormat("tiny", 100, 0.99)]
    assert choose_format(formats, 1e7) == "exact"
    assert choose_format(formats, 0.99e7) == "small"
    assert choose_format(formats, 1e3) == "small"
