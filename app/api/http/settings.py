"""What the API allows anybody."""

from __future__ import annotations

from pydantic import Field

from tandem.deployments.config.settings import Strict


class ApiSettings(Strict):
    """body_bytes: of a request, at most.
    body_s: in which it must have come.
    sessions: answers that one request may ask for: `n`, times prompts.
    cors_origins: of web pages that may use the API from a browser.
    drain_s: how long a replica of the API that is to be replaced lets its answers finish.
    """

    body_bytes: int = Field(2**20, ge=1024)
    body_s: float = Field(30.0, gt=0)
    sessions: int = Field(16, ge=1, le=128)
    cors_origins: tuple[str, ...] = ()
    drain_s: float = Field(300.0, ge=0)
