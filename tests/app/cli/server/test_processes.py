"""The end of processes."""

from __future__ import annotations

import pytest

from tandem.app.cli.server import processes
from tandem.app.cli.server.processes import end, myself


def test_a_process_may_end_between_the_look_and_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, signalled = iter([True, True]), []  # when it is chosen, and before the signal

    def kill(pid: int, sign: int) -> None:
        signalled.append(sign)
        raise ProcessLookupError

    monkeypatch.setattr("os.kill", kill)
    monkeypatch.setattr(processes, "alive", lambda process: next(seen, False))
    assert end([myself()]) == []
    assert len(signalled) == 1
