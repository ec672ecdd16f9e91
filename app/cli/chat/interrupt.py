"""Ctrl-C while an answer is written: it stops the answer, also where Python would lose the first exception."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_S = 1.0
"""Seconds after which an interrupt that has had no effect is raised again."""


@contextmanager
def interruptible(again_s: float = AGAIN_S) -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C, again and again until the block is left: Python ignores an exception in a
    finaliser, and the signal may come while one runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ident, left, timers = threading.get_ident(), threading.Event(), list[threading.Timer]()

    def pressed(*_: object) -> None:
        if left.is_set():
            return
        timer = threading.Timer(again_s, signal.pthread_kill, (ident, signal.SIGINT))
        timer.daemon = True
        timers.append(timer)
        timer.start()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        left.set()
        for timer in timers:
            timer.cancel()
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGINT, before)
