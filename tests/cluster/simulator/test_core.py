from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.simulator.core import Event, Process, Simulation


@given(st.lists(st.floats(0, 10), max_size=30))
def test_events_happen_in_the_order_of_their_times(times: list[float]) -> None:
    simulation, seen = Simulation(), []
    for index, time_s in enumerate(times):
        simulation.at(time_s, seen.append, (time_s, index))
    simulation.run()
    assert seen == sorted((time_s, index) for index, time_s in enumerate(times))
    assert simulation.events == len(times)


def test_a_process_wakes_at_the_times_it_names() -> None:
    simulation, seen = Simulation(), []

    def process() -> Process:
        for delay_s in (1.0, 0.5, 0.0):
            yield simulation.now + delay_s
            seen.append(simulation.now)

    simulation.spawn(process())
    simulation.run()
    assert seen == [1.0, 1.5, 1.5]


def test_an_event_wakes_its_process_with_its_value_at_once() -> None:
    simulation, seen, event = Simulation(), [], Event()

    def waiter() -> Process:
        seen.append((yield event))

    simulation.spawn(waiter())
    simulation.at(2.0, event.fire, "done")
    simulation.run()
    assert seen == ["done"]


def test_an_event_that_has_fired_keeps_nobody_waiting() -> None:
    simulation, seen, event = Simulation(), [], Event()
    event.fire(7)

    def waiter() -> Process:
        seen.append((yield event))
        seen.append((yield event))

    simulation.spawn(waiter())
    assert seen == [7, 7]


def test_an_event_fires_once() -> None:
    event = Event()
    event.fire()
    with pytest.raises(RuntimeError, match="once"):
        event.fire()


def test_nothing_can_be_scheduled_in_the_past() -> None:
    simulation = Simulation()
    simulation.at(1.0, lambda _: simulation.at(0.5, print))
    with pytest.raises(ValueError, match="past|already"):
        simulation.run()
