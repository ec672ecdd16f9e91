"""Keeps the limits of requests to a service."""

from __future__ import annotations

import asyncio

from tandem.engine.base import NoCapacity
from tandem.engine.service.config import RateLimits
from tandem.policies.admission.rate_limit import RateLimit


class Throttle:
    """Lets requests pass in the order in which they come, as soon as the limits allow."""

    def __init__(self, limits: RateLimits) -> None:
        self.wait_s = limits.wait_s
        per_minute = (limits.requests_per_minute, limits.tokens_per_minute)
        self._requests, self._tokens = (None if each is None else RateLimit(each) for each in per_minute)
        self._closed_until_s = float("-inf")

    @property
    def closed_s(self) -> float:
        """Seconds for which the service has asked to be left alone."""
        return max(0.0, self._closed_until_s - asyncio.get_running_loop().time())

    async def enter(self, tokens: int) -> None:
        """Wait until a request of `tokens` may be sent. Raise NoCapacity if that takes longer than `wait_s`."""
        now_s = asyncio.get_running_loop().time()
        waits_s = [self.closed_s]
        for bucket, amount in ((self._requests, 1.0), (self._tokens, float(tokens))):
            if bucket is not None:
                waits_s.append(bucket.wait_s(amount, now_s))
        wait_s = max(waits_s)
        if wait_s > self.wait_s:
            raise NoCapacity("the limits of requests to the service are used up", wait_s)
        self._take(1.0, tokens, now_s)  # in advance: the next request waits behind it
        try:
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self._take(-1.0, -tokens, asyncio.get_running_loop().time())
            raise

    def spend(self, tokens: int) -> None:
        """Count tokens of an answer."""
        self._take(0.0, tokens, asyncio.get_running_loop().time())

    def close(self, seconds: float) -> None:
        """Send nothing for `seconds`, as the service has asked."""
        self._closed_until_s = max(self._closed_until_s, asyncio.get_running_loop().time() + seconds)

    def _take(self, requests: float, tokens: float, now_s: float) -> None:
        if self._requests is not None:
            self._requests.take(requests, now_s)
        if self._tokens is not None:
            self._tokens.take(tokens, now_s)
