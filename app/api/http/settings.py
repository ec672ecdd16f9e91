"""Limits of the API that hold for every client."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tandem.deployments.access.kept.responses import KeptSettings
from tandem.deployments.config.settings import ServerTls, Strict

Privacy = Literal["as_is", "replaced"]
REPLACED: Privacy = "replaced"


class ApiSettings(Strict):
    """Limits of the API, and its TLS.

    tls: certificate that the API shows; null: it does not speak TLS.
    insecure: whether other machines may reach the API without TLS, as where a proxy in front speaks it.
    body_bytes: largest body of a request.
    body_s: time within which a body must arrive.
    sessions: most answers of one request: `n`, times prompts.
    generation_config: whether a model's generation_config.json gives temperature, top_k, top_p, min_p and
        repetition_penalty where a request names none; false: OpenAI's defaults.
    cors_origins: origins of web pages that may use the API from a browser.
    drain_s: time that a replaced replica of the API has to finish its answers.
    resume_s: time for which a resumable stream goes on, and is kept, without a client; 0: none is resumable.
    responses: memory for the responses of /v1/responses.
    privacy: whether names, addresses and numbers leave this machine "as_is", or "replaced" by stand-ins that are taken
        out of the answer again; a request may say otherwise.
    """

    tls: ServerTls | None = None
    insecure: bool = False
    body_bytes: int = Field(2**20, ge=1024)
    body_s: float = Field(30.0, gt=0)
    sessions: int = Field(16, ge=1, le=128)
    generation_config: bool = True
    cors_origins: tuple[str, ...] = ()
    drain_s: float = Field(300.0, ge=0)
    resume_s: float = Field(60.0, ge=0, le=3600)
    responses: KeptSettings = KeptSettings()
    privacy: Privacy = "as_is"
