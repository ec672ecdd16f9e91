"""OpenAI's headers with what is left of a key's limits."""

from __future__ import annotations

from tandem.deployments.admission.entry import Allowance, Passage

Headers = list[tuple[bytes, bytes]]


def rate_limit_headers(passage: Passage) -> Headers:
    """Return the headers of the key's limits; none for what is unlimited."""
    headers: Headers = []
    for what, left in (("requests", passage.requests), ("tokens", passage.tokens)):
        if left is not None:
            headers += _of(what, left)
    return headers


def _of(what: str, left: Allowance) -> Headers:
    said = {"limit": left.limit, "remaining": left.remaining, "reset": f"{left.reset_s:.3f}s"}
    return [(f"x-ratelimit-{name}-{what}".encode(), str(value).encode()) for name, value in said.items()]
