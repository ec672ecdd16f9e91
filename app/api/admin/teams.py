"""Teams of keys over HTTP, for operators: make, list, change and remove."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict

from tandem.app.api.admin.account import PeriodView
from tandem.app.api.admin.keys import QuotaForm, QuotaView
from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import AdminBackend, ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.deployments.access.teams import TeamStatement
from tandem.deployments.docstrings import describe


class TeamForm(QuotaForm):
    """A team to make; its limits hold for all its keys together.

    name: its name.
    """

    name: str


class TeamChange(QuotaForm):
    """Changes of a team's limits; what is left out stays."""


class TeamView(BaseModel):
    """A team of keys as operators see it.

    limits: of all its keys together.
    keys: ids of its keys.
    period: dollars in the period that `limits.usd` is for.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    name: str
    limits: QuotaView
    keys: list[str]
    period: PeriodView

    @classmethod
    def of(cls, said: TeamStatement) -> TeamView:
        return cls(
            name=said.team.name,
            limits=QuotaView.of(said.team.quota),
            keys=list(said.keys),
            period=PeriodView(since=said.usd.since, server_usd=said.usd.usd),
        )


class TeamList(BaseModel):
    object: Literal["list"] = "list"
    data: list[TeamView]


def add_teams(api: FastAPI, backend: ServingBackend, admin: AdminBackend) -> None:
    """Add the endpoints below /v1/teams."""

    @api.get("/v1/teams")
    async def teams(request: Request) -> TeamList:
        await operator(request, backend)
        return TeamList(data=[TeamView.of(team) for team in await admin.teams()])

    @api.post("/v1/teams", status_code=201, openapi_extra=described(TeamForm))
    async def make(request: Request) -> TeamView:
        await operator(request, backend)
        form = await body_of(request, TeamForm, backend.api)
        return TeamView.of(await admin.make_team(form.name, form.changes()))

    @api.patch("/v1/teams/{name}", openapi_extra=described(TeamChange))
    async def change(request: Request, name: str) -> TeamView:
        await operator(request, backend)
        form = await body_of(request, TeamChange, backend.api)
        return TeamView.of(await admin.change_team(name, form.changes()))

    @api.delete("/v1/teams/{name}", status_code=204)
    async def remove(request: Request, name: str) -> Response:
        """Remove a team that no key belongs to."""
        await operator(request, backend)
        await admin.remove_team(name)
        return Response(status_code=204)
