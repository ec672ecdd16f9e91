from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from tandem.app.cli.chat.interrupt import interruptible


def lose_one() -> None:
    """Swallow an interrupt, as Python does in a finaliser, and wait for the next."""
    with interruptible(again_s=0.01):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        threading.Event().wait(30)


def test_an_interrupt_that_is_lost_comes_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        lose_one()
    assert signal.getsignal(signal.SIGINT) is before


def test_it_comes_once_where_it_has_had_its_effect() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible(again_s=60):
        signal.raise_signal(signal.SIGINT)
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_without_a_press_nothing_happens() -> None:
    with interruptible():
        pass
