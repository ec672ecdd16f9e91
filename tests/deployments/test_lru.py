from __future__ import annotations

from tandem.deployments.lru import LRUTable


def test_what_was_not_used_for_longest_goes_first() -> None:
    kept: LRUTable[str, int] = LRUTable(2)
    kept["a"] = 1
    kept.update({"b": 2})
    assert kept.of("a", lambda: 9) == 1  # which uses it
    assert kept.of("c", lambda: 3) == 3
    assert dict(kept) == {"a": 1, "c": 3}
    kept["a"] = 4  # as does this
    kept.update({"d": 5})
    assert dict(kept) == {"a": 4, "d": 5}
