"""Whether a service serves this application, as its last answers tell."""

from __future__ import annotations

import asyncio
import logging
import re

from tandem.engine.base import ServiceRefused

logger = logging.getLogger("ray.serve")

REASONS = {
    401: "it does not accept the key",
    402: "there is no credit left",
    403: "the key may not use it",
    404: "it does not know the model",
    410: "it has the model no longer",
}
"""Statuses that stand for a refusal of everything, and what they mean."""
NO_CREDIT = "insufficient_quota"
"""Code of a refusal that looks like a limit of requests, and will not pass by itself."""
REST_S = 30.0
"""Seconds after a refusal in which only requests that can go nowhere else ask the service."""
CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.IGNORECASE)


class Condition:
    """Condition of one service.

    refusal: why it serves nothing; nothing if it does, or was not asked.
    """

    def __init__(self, model: str, base_url: str) -> None:
        self.refusal = ""
        self._model, self._base_url = model, base_url
        self._rest_until_s = float("-inf")

    @property
    def rest_s(self) -> float:
        """Seconds for which it had better not be asked."""
        return max(0.0, self._rest_until_s - asyncio.get_running_loop().time())

    def serves(self) -> None:
        """Note an answer."""
        if self.refusal:
            logger.warning("the service of %s at %s serves again", self._model, self._base_url)
            self.refusal, self._rest_until_s = "", float("-inf")

    def refused(self, status: int, code: str) -> ServiceRefused | None:
        """Note a reply's refusal of everything, and return its error; None for any other reply. Neither log nor error
        has the service's own words, which may show part of a key.

        code: the service's code for it, which is logged if it looks like one.
        """
        reason = REASONS[402] if NO_CREDIT in code else REASONS.get(status)
        if reason is None:
            return None
        why = f"the service of {self._model} refuses every request: {reason} (HTTP {status})"
        if why != self.refusal:
            known = code if CODE.fullmatch(code) else "none"
            logger.error("%s; %s, code %s", why, self._base_url, known)
        self.refusal, self._rest_until_s = why, asyncio.get_running_loop().time() + REST_S
        return ServiceRefused(why)
