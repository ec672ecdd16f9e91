"""Oracle of dispatch: the least mean time to first token that any plan could have within the same budget.

A plan says of every request when the constrained endpoint starts, or gives chances of several times. With the lengths
of all requests, the server's true distribution and the device's true speed, the best one solves a linear programme:

    least Σ_i Σ_j x_ij · ttft_ij,   Σ_j x_ij = 1,   Σ_i Σ_j x_ij · tokens_ij ≤ budget,   x_ij ≥ 0

over requests i and start times j. It has one constraint beside those that make x a choice, so that Dantzig's rule
solves it (Sinha and Zoltners 1979): of every request, only the choices on the lower convex hull matter, and the steps
along all hulls are taken by what they gain for a token until the budget is spent. The dual's value at the last step's
gain bounds every plan from below, and is the same. No policy's code takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tandem.policies.race.dispatch import Side


class Choices(NamedTuple):
    """Choices for a number of equal requests.

    requests: how many.
    tokens: that the constrained endpoint takes in for each on average, by choice, ascending.
    ttft_s: mean time to first token, by choice.
    """

    requests: int
    tokens: np.ndarray
    ttft_s: np.ndarray


class Optimum(NamedTuple):
    """Solution of the linear programme.

    total_s: sum of all requests' mean times to first token.
    bound_s: the dual's value, which no plan is below.
    """

    total_s: float
    bound_s: float


def solve(choices: Sequence[Choices], budget: float) -> Optimum:
    """Solve the linear programme.

    budget: tokens; at least as many as the cheapest choices need.
    """
    tokens, gained_s = [], []
    total_s = left = 0.0
    hulls = [(each.requests, *_hull(each.tokens, each.ttft_s)) for each in choices]
    for requests, cost, value in hulls:
        total_s += requests * float(value[0])
        left += requests * float(cost[0])
        tokens.append(requests * np.diff(cost))
        gained_s.append(-requests * np.diff(value))
    left = budget - left
    steps, gains_s = np.concatenate(tokens), np.concatenate(gained_s)
    rates = gains_s / steps
    price_s = 0.0
    for at in np.argsort(-rates, kind="stable"):
        if steps[at] > left:
            price_s = float(rates[at])
            total_s -= price_s * left
            break
        left -= float(steps[at])
        total_s -= float(gains_s[at])
    bound_s = sum(n * float((value + price_s * cost).min()) for n, cost, value in hulls) - price_s * budget
    return Optimum(total_s, bound_s)


def _hull(tokens: np.ndarray, ttft_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the choices on the lower convex hull, as far as more tokens are of use."""
    hull: list[tuple[float, float]] = []
    for x, y in zip(tokens.tolist(), ttft_s.tolist(), strict=True):
        if hull and y >= hull[-1][1]:
            continue
        if hull and x == hull[-1][0]:
            hull.pop()
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return np.array([x for x, _ in hull]), np.array([y for _, y in hull])


class Times:
    """The server's true distribution of times to first token, each of some as likely as the others.

    server_s: seconds.
    """

    def __init__(self, server_s: np.ndarray) -> None:
        self._sorted = np.sort(server_s)
        self._sums = np.concatenate(([0.0], np.cumsum(self._sorted)))

    def late(self, wait_s: np.ndarray) -> np.ndarray:
        """Return the chances that the server gives no token within these waits."""
        return 1.0 - np.searchsorted(self._sorted, wait_s, side="right") / len(self._sorted)

    def first_s(self, wait_s: np.ndarray, device_s: float) -> np.ndarray:
        """Return the mean times to first token if the device starts after these waits, which may be infinite."""
        n = len(self._sorted)
        by_server = np.searchsorted(
            self._sorted, wait_s + device_s, side="right"
        )  # all that come before the device's
        by_device = n - by_server
        device = np.where(by_device > 0, wait_s + device_s, 0.0)
        return (self._sums[by_server] + by_device * device) / n

    def waits_s(self, longest_s: float) -> np.ndarray:
        """Return the waits among which the best ones are, the longest first: others cost as much as a shorter one."""
        return np.concatenate(([longest_s], self._sorted[::-1][self._sorted[::-1] < longest_s], [0.0]))


class Plan(NamedTuple):
    """Plan of some requests.

    tokens: of their prompts.
    races: whether the server starts on each at once; otherwise the device alone does.
    wait_s: after which the device starts if the server has given no token; infinite for never.
    """

    tokens: np.ndarray
    races: np.ndarray
    wait_s: np.ndarray


def gap(plan: Plan, prefill: float, times: Times, constrained: Side, longest_s: float = np.inf) -> float:
    """Return by how much, as a share, a plan's mean time to first token is above the least for what it spends.

    prefill: of the device, tokens/s.
    longest_s: a constrained device waits no longer in the best plan either.
    """
    choices, planned_s, spent = [], 0.0, 0.0
    waits_s = times.waits_s(longest_s)
    lengths, counts = np.unique(plan.tokens, return_counts=True)
    for length, requests in zip(lengths.tolist(), counts.tolist(), strict=True):
        device_s, these = length / prefill, plan.tokens == length
        if constrained is Side.DEVICE:
            own_s = plan.wait_s[these]
            choices.append(Choices(requests, length * times.late(waits_s), times.first_s(waits_s, device_s)))
            planned_s += float(times.first_s(own_s, device_s).sum())
            spent += length * float(times.late(own_s).sum())
        else:
            raced_s, raced = float(times.first_s(np.zeros(1), device_s)[0]), int(plan.races[these].sum())
            choices.append(Choices(requests, np.array([0.0, length]), np.array([device_s, raced_s])))
            planned_s += raced * raced_s + (requests - raced) * device_s
            spent += length * raced
    return planned_s / solve(choices, spent).total_s - 1.0
