"""Usage over HTTP: what requests have cost, by account, day, mode, model, device and team; as JSON or CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from tandem.app.api.admin.account import BillView
from tandem.app.api.http.auth import authenticate, operator
from tandem.app.api.http.backend import AdminBackend, ServingBackend
from tandem.app.api.http.errors import ApiError
from tandem.deployments.access.keys import Role
from tandem.deployments.access.usage import Group, Usage, UsageQuery
from tandem.deployments.docstrings import describe

Groups = Annotated[list[Group], Query(max_length=6)]


class UsageRow(BillView):
    """Cost of the requests of one group. A group that was not asked for is null; a day, mode or model is "" for usage
    from before they were kept.

    day: of the requests' end, UTC.
    team: that the account's key belonged to; "" for none.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    account: str | None = None
    day: str | None = None
    mode: str | None = None
    model: str | None = None
    device: str | None = None
    team: str | None = None


class UsageList(BaseModel):
    object: Literal["list"] = "list"
    data: list[UsageRow]


def add_usage(api: FastAPI, backend: ServingBackend, admin: AdminBackend) -> None:
    """Add the endpoint that shows usage."""

    @api.get("/v1/usage", response_model=UsageList, responses={200: {"content": {"text/csv": {}}}})
    async def usage(
        request: Request,
        start: date | None = None,
        end: date | None = None,
        by: Groups = ["account", "day", "mode"],  # noqa: B006  FastAPI copies it
        account: str | None = None,
        format: Literal["json", "csv"] = "json",
    ) -> Response:
        """Show usage from the day `start` to the day `end`, both included, UTC. A user sees its own; an operator that
        of all accounts, or of the one named."""
        caller = await authenticate(request, backend)
        if caller.role is not Role.OPERATOR and account is None:
            account = caller.account
        elif account != caller.account:
            await operator(request, backend)
        if start is not None and end is not None and end < start:
            raise ApiError(400, f"end: {end} is before {start}", code="invalid_value", param="end")
        groups = tuple(dict.fromkeys(by))
        query = UsageQuery(account, by=groups)
        if start is not None:
            query = replace(query, start=start.isoformat())
        if end is not None:
            query = replace(query, end=end.isoformat())
        rows = [_row(groups, each) for each in await admin.usage(query)]
        if format == "csv":
            return Response(_csv(groups, rows), media_type="text/csv")
        return JSONResponse({"object": "list", "data": rows})


def _row(groups: tuple[Group, ...], usage: Usage) -> dict[str, Any]:
    return dict(zip(groups, usage.place, strict=True)) | BillView.shown(usage.bill)


def _csv(groups: tuple[Group, ...], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*groups, *BillView.model_fields], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
