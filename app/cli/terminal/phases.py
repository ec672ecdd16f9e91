"""Progress of a start that takes a while: what it is doing, also for a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

Tell = Callable[[str], None]
"""Takes what is being done now; saying the same again is no change."""


@contextmanager
def phases(console: Console, began_s: float) -> Iterator[Tell]:
    """Show what is being done: in place on a terminal, elsewhere in a line for each change.

    began_s: beginning of the start on the monotonic clock; lines have the seconds since then.
    """
    if console.is_terminal:
        with console.status("") as status:
            yield lambda text: status.update(escape(text))
        return
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            line(console, text, began_s)

    yield tell


def line(console: Console, text: str, began_s: float) -> None:
    """Print a line about what is being done."""
    after = "" if console.is_terminal else f"{time.monotonic() - began_s:4.0f} s  "
    console.print(f"{after}{text}", markup=False, highlight=False, soft_wrap=True)
