"""Accounts over HTTP: whose a request is, what it has cost so far, and its budget and exchange rate."""

from __future__ import annotations

import hashlib

from fastapi import Request
from pydantic import BaseModel, Field

from app.api.schema import Strict
from deployments.accounts import Statement

ANONYMOUS = "anonymous"


class AccountChange(Strict):
    """What is left out stays as it is.

    budget: share of prompt tokens that the constrained endpoint may take in.
    exchange_rate: what a joule of the devices is worth, dollars.
    """

    budget: float | None = Field(None, ge=0, le=1)
    exchange_rate: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)


class AccountView(BaseModel):
    """Tokens, dollars and joules of all requests so far.

    budget_used: of the last 1000 races in which the server, or the device, was the constrained endpoint, its share of
        prompt tokens.
    """

    account: str
    budget: float
    exchange_rate: float
    requests: int
    server_tokens_in: int
    server_tokens_out: int
    device_tokens_in: int
    device_tokens_out: int
    server_usd: float
    device_joules: float
    device_usd: float
    budget_used: dict[str, float]

    @classmethod
    def of(cls, key: str, statement: Statement) -> AccountView:
        ledger, used = statement.ledger, statement.ledger.used
        return cls(
            account=key,
            budget=statement.terms.budget,
            exchange_rate=statement.terms.exchange_rate,
            requests=ledger.requests,
            server_tokens_in=used.server_in,
            server_tokens_out=used.server_out,
            device_tokens_in=used.device_in,
            device_tokens_out=used.device_out,
            server_usd=ledger.server_usd,
            device_joules=ledger.joules,
            device_usd=ledger.device_usd,
            budget_used={
                str(side): round(spent / max(1, tokens), 6)
                for side, (tokens, spent) in statement.raced.items()
            },
        )


def account_key(request: Request, device: str | tuple[str, ...] | None = None) -> str:
    """Whose request it is: the API key's, of which only a fingerprint is kept; without one, the device's."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and secret.strip():
        return "key-" + hashlib.sha256(secret.strip().encode()).hexdigest()[:16]
    if isinstance(device, str):
        return f"device-{device}"
    return ANONYMOUS
