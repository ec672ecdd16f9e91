"""Accounts over HTTP: cost of the requests so far, and terms."""

from __future__ import annotations

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict

from tandem.app.api.admin.keys import TermsForm, TermsView
from tandem.app.api.completions.schema import DeviceName
from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import AdminBackend, ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.deployments.access.accounts import Statement
from tandem.deployments.docstrings import describe
from tandem.deployments.request.bill import Bill


class AccountChange(TermsForm):
    """Changes of an account's terms; fields left out stay as they are."""


class BillView(BaseModel):
    """Cost of requests, in tokens, dollars and joules."""

    requests: int
    server_tokens_in: int
    server_tokens_out: int
    device_tokens_in: int
    device_tokens_out: int
    server_usd: float
    server_usd_in: float
    server_usd_out: float
    device_joules: float
    device_usd: float

    @classmethod
    def of(cls, bill: Bill) -> BillView:
        return cls(**cls.shown(bill))

    @staticmethod
    def shown(bill: Bill) -> dict[str, float]:
        """Return the fields of a bill."""
        used = bill.used
        return {
            "requests": bill.requests,
            "server_tokens_in": used.server_in,
            "server_tokens_out": used.server_out,
            "device_tokens_in": used.device_in,
            "device_tokens_out": used.device_out,
            "server_usd": bill.server_usd,
            "server_usd_in": bill.server_usd_in,
            "server_usd_out": bill.server_usd_out,
            "device_joules": bill.joules,
            "device_usd": bill.device_usd,
        }


class PeriodView(BaseModel):
    """Cost of an account in a period.

    since: the period's first day, UTC.
    server_usd: dollars that the server asks for its tokens.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    since: str
    server_usd: float


class AccountView(BillView):
    """Account: cost of all requests so far, and terms.

    account: id of the account.
    budget, exchange_rate: as in `terms`.
    terms: terms of the next request.
    budget_used: by constrained endpoint, `server` or `device`, its share of the prompt tokens in its last 1000 races.
    devices: cost of the requests with each device.
    period: dollars in the period that `terms.usd` is for.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    account: str
    budget: float
    exchange_rate: float
    terms: TermsView
    budget_used: dict[str, float]
    devices: dict[str, BillView]
    period: PeriodView

    @classmethod
    def about(cls, key: str, statement: Statement) -> AccountView:
        """Make the view of account `key`."""
        terms = TermsView.of(statement.terms)
        return cls(
            account=key,
            budget=terms.budget,
            exchange_rate=terms.exchange_rate,
            terms=terms,
            **cls.shown(statement.total),
            budget_used={
                what: round(spent / max(1, tokens), 6) for what, (tokens, spent) in statement.spent.items()
            },
            devices={name: BillView.of(bill) for name, bill in statement.devices.items()},
            period=PeriodView(since=statement.usd.since, server_usd=statement.usd.usd),
        )


def add_terms(api: FastAPI, backend: ServingBackend, admin: AdminBackend) -> None:
    """Add the endpoint that changes an account's terms."""

    @api.patch("/v1/account", openapi_extra=described(AccountChange))
    async def change_account(
        request: Request, device: DeviceName | None = None, account: str | None = None
    ) -> AccountView:
        """Change an account's terms; for operators."""
        caller = await operator(request, backend)
        key = account or caller.at(device).account
        changes = (await body_of(request, AccountChange, backend.api)).changes()
        return AccountView.about(key, await admin.settle(key, changes))
