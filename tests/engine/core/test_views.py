"""The scheduling control knows the core's sessions and memory by its views alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tandem.engine.base import Sampling
from tandem.engine.config import HostMemory
from tandem.engine.core.memory import Memory
from tandem.engine.core.sequence import Sequence as Session
from tandem.policies.scheduling.base import scheduling
from tandem.policies.scheduling.control import SchedulingControl
from tests.engine.core.core_driver import Driver
from tests.engine.core.plain_runner import PlainRunner
from tests.policies.scheduling.views import MemoryData, SessionData


def session_data(s: Session) -> SessionData:
    return SessionData(
        s.number, s.opened_s, s.reader, s.fresh, s.paused, s.rank, s.wanting, s.admitted, s.received, s.longest,
        s.missing, s.stored, s.prompt_len,
    )  # fmt: skip


def memory_data(m: Memory) -> MemoryData:
    return MemoryData(m.capacity, m.block_size, m.places, m.copy_s, m.copy_queue_s)


class Shadowed(SchedulingControl):
    """A control beside which another one decides the same, over plain data of what this one sees."""

    def __init__(self, driver: Driver, policy: str, most: int) -> None:
        memory, self._core = driver.core.memory, driver.core
        super().__init__(scheduling.create(policy), memory, driver.core.step_time, most)
        self._shadow = SchedulingControl(
            scheduling.create(policy), memory_data(memory), driver.core.step_time, most
        )

    def changed(self) -> None:
        super().changed()
        self._shadow.changed()

    def ended(self, output_tokens: int) -> None:
        super().ended(output_tokens)
        self._shadow.ended(output_tokens)

    def decide(self, sessions: Sequence[Session], now_s: float) -> None:  # type: ignore[override]
        copies = [session_data(s) for s in sessions]
        self._shadow._memory = memory_data(self._core.memory)
        self._shadow.decide(copies, now_s)
        super().decide(sessions, now_s)
        assert [(s.paused, s.rank) for s in sessions] == [(c.paused, c.rank) for c in copies]
        assert self.due_s(sessions, now_s) == self._shadow.due_s(copies, now_s)


@pytest.mark.parametrize("policy", list(scheduling))
def test_any_view_of_the_same_is_decided_on_alike(policy: str) -> None:
    driver = Driver(
        PlainRunner,
        blocks=24,
        scheduling=scheduling.create(policy),
        max_running=3,
        host=HostMemory(blocks=40, copy_mb_per_s=12_800e-6),
    )
    driver.core._control = Shadowed(driver, policy, 3)
    rng = np.random.default_rng(3)
    for _ in range(1000):
        if len(driver.clients) < 8 and rng.random() < 0.2:
            sampling = Sampling(max_tokens=int(rng.integers(2, 40)), reader_rate=float(rng.integers(1, 60)))
            client = driver.open(rng.integers(3, 9, rng.integers(1, 20)).tolist(), sampling)
            if rng.random() < 0.8:
                driver.generate(client)
        for client in [c for c in driver.clients if c.finish]:
            driver.cancel(client)
        driver.step()
    assert driver.core.stats.decisions > 20
