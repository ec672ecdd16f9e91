"""Keys over HTTP, for operators: make, list, change, rotate and revoke."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from fastapi import FastAPI, Request, Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tandem.app.api.completions.schema import DeviceName, NamedObjective
from tandem.app.api.http.auth import operator
from tandem.app.api.http.backend import AdminBackend, ServingBackend
from tandem.app.api.http.bodies import body_of, described
from tandem.app.api.http.forms import StrictForm
from tandem.deployments.access.keys import Key, Role
from tandem.deployments.access.quota import Quota
from tandem.deployments.access.usage import Period
from tandem.deployments.docstrings import describe
from tandem.deployments.modes import MODES
from tandem.policies.routing.objectives import Objective

YEAR_S = 366 * 24 * 3600.0


def _known_modes(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if unknown := [name for name in names or () if name not in MODES]:
        raise ValueError(f"there is no mode {unknown[0]!r}, but {', '.join(MODES)}")
    return names


class QuotaForm(StrictForm):
    """Limits; 0 lifts one, and what is left out stays.

    requests_per_minute: requests per minute.
    tokens_per_minute: tokens taken in and given out per minute.
    concurrent: answers under way at once.
    usd: dollars that the server's tokens may cost in a period.
    per: the period: a day, a week from Monday on, or a month, UTC.
    """

    requests_per_minute: int | None = Field(None, ge=0, le=10**9)
    tokens_per_minute: int | None = Field(None, ge=0, le=10**12)
    concurrent: int | None = Field(None, ge=0, le=10**6)
    usd: float | None = Field(None, ge=0, le=1e9, allow_inf_nan=False)
    per: Period | None = None

    @classmethod
    def limits(cls) -> set[str]:
        """Return the names of the limits."""
        return set(QuotaForm.model_fields)

    def changes(self) -> dict[str, Any]:
        """Return the limits to change."""
        given = self.model_dump(include=self.limits())
        return {name: value for name, value in given.items() if value is not None}


class TermsForm(QuotaForm):
    """Terms of an account; 0 or an empty list lifts a limit, and what is left out stays, at first as in the settings.

    budget: share of prompt tokens that the constrained endpoint of races may take in; a request cannot raise it.
    exchange_rate: dollars that a joule of the devices is worth; a request cannot raise it.
    modes: names of the modes that may be asked for.
    devices: names of the devices that may be asked for.
    expires_s: time at which the key expires, seconds since the epoch.
    objective: what counts for requests that bring none, as `tandem.objective` has it, and whose limits no request
        loosens; "" for none. Needs the collaboration policy `auto`.
    """

    budget: float | None = Field(None, ge=0, le=1)
    exchange_rate: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    modes: Annotated[tuple[str, ...] | None, AfterValidator(_known_modes)] = Field(None, strict=False)
    devices: tuple[DeviceName, ...] | None = Field(None, max_length=256, strict=False)
    expires_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    objective: Literal[""] | NamedObjective | None = None

    @classmethod
    def limits(cls) -> set[str]:
        return set(TermsForm.model_fields)

    def changes(self) -> dict[str, Any]:
        given = super().changes()
        return given | {"objective": self.objective.objective()} if self.objective else given


class KeyForm(TermsForm):
    """A key to make.

    name: the owner's name; for a device's key, the name by which requests ask for the device.
    role: what the key may do.
    team: name of the team that it belongs to.
    """

    name: str = Field(min_length=1, max_length=128)
    role: Role = Field(Role.USER, strict=False)
    team: str = ""


class KeyChange(TermsForm):
    """Changes of a key; what is left out stays, and an empty team is none."""

    name: str | None = Field(None, min_length=1, max_length=128)
    role: Role | None = Field(None, strict=False)
    team: str | None = None


class Rotation(StrictForm):
    """A key's new secret.

    grace_s: seconds for which the old secret stays valid.
    """

    grace_s: float = Field(0.0, ge=0, le=YEAR_S)


class QuotaView(BaseModel):
    """Limits; null means no limit."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent: int | None
    usd: float | None
    per: Period

    @classmethod
    def of(cls, quota: Quota) -> Self:
        return cls(**{name: getattr(quota, name) for name in cls.model_fields})


class ObjectiveView(BaseModel):
    """Objective; null means no limit."""

    second_usd: float
    quality_usd: float
    ttft_s: float | None
    usd: float | None
    min_quality: float
    privacy: str

    @classmethod
    def of(cls, objective: Objective) -> Self:
        return cls(
            second_usd=objective.second_usd,
            quality_usd=objective.quality_usd,
            ttft_s=objective.ttft_s if objective.ttft_s < math.inf else None,
            usd=objective.usd if objective.usd < math.inf else None,
            min_quality=objective.min_quality,
            privacy=objective.privacy.name.lower(),
        )


class TermsView(QuotaView):
    """Terms of an account; null means no limit."""

    budget: float
    exchange_rate: float
    modes: list[str] | None
    devices: list[str] | None
    expires_s: float | None
    objective: Annotated[
        ObjectiveView | None,
        BeforeValidator(lambda own: ObjectiveView.of(own) if isinstance(own, Objective) else own),
    ]


class KeyView(BaseModel):
    """A key as operators see it.

    hint: last characters of its secret.
    made_s: time at which it was made, seconds since the epoch.
    terms: terms of its account.
    team: name of its team; null without one.
    secret: its secret; null except in the reply that makes or rotates it.
    """

    model_config = ConfigDict(json_schema_extra=describe)

    id: str
    name: str
    role: Role
    hint: str
    made_s: float
    terms: TermsView
    team: str | None = None
    secret: str | None = None

    @classmethod
    def of(cls, key: Key, secret: str | None = None) -> KeyView:
        return cls(
            id=key.id,
            name=key.name,
            role=key.role,
            hint=key.hint,
            made_s=key.made_s,
            terms=TermsView.of(key.terms),
            team=key.team or None,
            secret=secret,
        )


class KeyList(BaseModel):
    object: str = "list"
    data: list[KeyView]


def add_keys(api: FastAPI, backend: ServingBackend, admin: AdminBackend) -> None:
    """Add the endpoints below /v1/keys."""

    @api.get("/v1/keys", response_model_exclude_none=True)
    async def keys(request: Request) -> KeyList:
        await operator(request, backend)
        return KeyList(data=[KeyView.of(key) for key in await admin.keys()])

    @api.post("/v1/keys", status_code=201, openapi_extra=described(KeyForm))
    async def make(request: Request) -> KeyView:
        """Make a key; only this reply shows its secret."""
        await operator(request, backend)
        form = await body_of(request, KeyForm, backend.api)
        return KeyView.of(*await admin.make_key(form.name, form.role, form.changes(), form.team))

    @api.patch("/v1/keys/{id}", openapi_extra=described(KeyChange))
    async def change(request: Request, id: str) -> KeyView:
        await operator(request, backend)
        form = await body_of(request, KeyChange, backend.api)
        return KeyView.of(await admin.change_key(id, form.name, form.role, form.changes(), form.team))

    @api.post("/v1/keys/{id}/rotate", openapi_extra=described(Rotation))
    async def rotate(request: Request, id: str) -> KeyView:
        """Give a key a new secret; only this reply shows it."""
        await operator(request, backend)
        form = await body_of(request, Rotation, backend.api)
        return KeyView.of(*await admin.rotate_key(id, form.grace_s))

    @api.delete("/v1/keys/{id}", status_code=204)
    async def revoke(request: Request, id: str) -> Response:
        await operator(request, backend)
        await admin.revoke_key(id)
        return Response(status_code=204)
