"""JSON objects a few characters at a time."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tandem.app.api.tools.scanner import ObjectScanner

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\{}[]:, é\n', max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
objects = st.dictionaries(st.text('ab"\\{}:,', max_size=4), values, max_size=4)


@given(objects, st.sampled_from([None, 2]), st.integers(1, 5), st.sampled_from(["", "}", " {", "x"]))
def test_every_value_is_found_in_whatever_pieces(value, indent, size, behind):
    text, scanner, rest = json.dumps(value, indent=indent, ensure_ascii=False) + behind, ObjectScanner(), ""
    for at in range(0, len(text), size):
        rest += scanner.feed(text[at : at + size])
    assert scanner.done
    assert not scanner.failed
    assert rest == behind
    assert scanner.complete == set(value)
    assert {key: json.loads(written) for key, written in scanner.values.items()} == value
    assert all(scanner.value(key) == each for key, each in value.items())


@given(objects.filter(bool), st.data())
def test_a_beginning_is_neither_done_nor_failed(value, data):
    text = json.dumps(value)
    scanner = ObjectScanner()
    assert scanner.feed(text[: data.draw(st.integers(0, len(text) - 1))]) == ""
    assert not scanner.done
    assert not scanner.failed


def test_what_is_no_object_fails():
    for text in ("hello", "[1]", '{"a": <b>', "7"):
        scanner = ObjectScanner()
        scanner.feed(text)
        assert scanner.failed
        assert not scanner.done
