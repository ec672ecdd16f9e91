"""Table that drops the least recently used entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LRUTable(OrderedDict[K, V]):
    """Table of at most `limit` items, which drops those that were neither set nor asked for by `of` for longest."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)

    def of(self, key: K, new: Callable[[], V]) -> V:
        """Return a key's value; set it to `new()` if there is none."""
        found = self.get(key)
        if found is None:
            found = self[key] = new()
        else:
            self.move_to_end(key)
        return found
