"""A bill: it begins at nothing, and each of its figures is added to its own."""

from __future__ import annotations

from tandem.deployments.request.bill import Bill
from tandem.policies.cost import Used


def bill(scale: int) -> Bill:
    used = Used(server_in=2 * scale, server_out=3 * scale, device_in=5 * scale, device_out=7 * scale)
    return Bill(scale, used, 0.5 * scale, 0.25 * scale, 11.0 * scale, 0.125 * scale)


def test_nothing_was_used_yet() -> None:
    assert Bill() == Bill(0, Used(0, 0, 0, 0), 0.0, 0.0, 0.0, 0.0)


def test_a_sum_is_of_each_figure() -> None:
    total, other = bill(1), bill(3)
    total.add(other)
    assert total == bill(4)
    assert other == bill(3), "it is not changed"


def test_new_bills_share_nothing() -> None:
    first, second = Bill(), Bill()
    first.add(bill(1))
    assert second == Bill()


def test_the_server_asks_for_what_it_takes_in_and_for_what_it_gives_out() -> None:
    assert bill(1).server_usd == 0.75
