"""Interfaces behind the API: one serves requests, one keeps keys and the terms of accounts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol

from opentelemetry.trace import Tracer
from pydantic import BaseModel, ConfigDict

from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.access.accounts import Statement
from tandem.deployments.access.kept.streams import Outcome, StreamCopy, StreamNews
from tandem.deployments.access.keys import Caller, Key, Role
from tandem.deployments.access.teams import TeamStatement
from tandem.deployments.access.usage import Usage, UsageQuery
from tandem.deployments.admission.entry import Entry, Passage
from tandem.deployments.control.observation import Observation
from tandem.deployments.control.orders import DeviceOrder, OrdersTold
from tandem.deployments.docstrings import describe
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.under_way import UnderWay
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.text.tokenizer import Tokenizer


class ModelPart(BaseModel):
    """A model that takes part in the answers that clients get under one name.

    role: target: the large model; drafter, expander: small ones in the cloud; device: of the named devices.
    model: its own name.
    parameters: their number; null: not known to the server.
    bytes: of its files; null: not known to the server.
    demo: whether it is one of Tandem's embedded models, which know nothing but an invented encyclopedia.
    devices: names of the devices that the settings give it to.
    """

    model_config = ConfigDict(frozen=True, json_schema_extra=describe)

    role: Literal["target", "drafter", "expander", "device"]
    model: str
    parameters: int | None = None
    bytes: int | None = None
    demo: bool = False
    devices: tuple[str, ...] = ()


class ModelCard(BaseModel):
    """A model under the name that clients use.

    context: the most tokens of prompt and output together.
    vocabulary: id of the vocabulary, equal for models whose token ids mean the same.
    aliases: further names of the model.
    parent: the model whose adapter this is; null: it is none.
    parts: models that answer under this name, the large one first; devices that dial in have further ones.
    """

    model_config = ConfigDict(frozen=True, json_schema_extra=describe)

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tandem"
    context: int
    vocabulary: str
    aliases: tuple[str, ...] = ()
    parent: str | None = None
    parts: tuple[ModelPart, ...] = ()


class ResponseStore(Protocol):
    """Keeps responses for a while, under their account and id. Raises Unavailable without an answer in time."""

    async def keep(self, account: str, id: str, body: bytes) -> bool:
        """Keep a response; return False if it is too large, or none is kept."""
        ...

    async def get(self, account: str, id: str) -> bytes | None:
        """Return a response; None if it is not there, or not any more."""
        ...

    async def drop(self, account: str, id: str) -> bool:
        """Forget a response; return whether it was there."""
        ...


class StreamStore(Protocol):
    """Keeps copies of resumable streams for all replicas of the API, as
    `deployments.access.kept.streams.StreamCopies`. Raises Unavailable without an answer in time."""

    async def take(self, owner: str, news: Sequence[StreamNews]) -> list[Outcome]:
        """Take in news of an owner's streams; return what became of each."""
        ...

    async def claim(self, account: str, id: str, owner: str) -> StreamCopy | None:
        """Make a stream this owner's, and return its copy; None if there is none."""
        ...

    async def forget(self, streams: Sequence[tuple[str, str]]) -> None:
        """Forget streams, by account and id."""
        ...


class ServingBackend(Protocol):
    """Serves requests and says what is up; every method is called on its event loop and must not block it."""

    @property
    def api(self) -> ApiSettings:
        """Limits that hold for every client."""
        ...

    @property
    def default_reader_rate(self) -> float:
        """Tokens/s of a streamed chat's reader unless the client says; 0 if there is no reader."""
        ...

    @property
    def behind_proxy(self) -> bool:
        """Whether requests come through a proxy, which must name the client."""
        ...

    @property
    def tracer(self) -> Tracer | None:
        """Tracer of requests; None: nothing is traced."""
        ...

    @property
    def streams(self) -> StreamStore | None:
        """Copies of resumable streams; None where there is but one process."""
        ...

    @property
    def responses(self) -> ResponseStore:
        """Responses that conversations may go on from."""
        ...

    def models(self) -> Sequence[ModelCard]: ...

    def tokenizer(self, model: str) -> Tokenizer:
        """Return the tokenizer of a model in `models`."""
        ...

    def objectives(self) -> Sequence[str]:
        """Return the names of the objectives that the collaboration policy weighs."""
        ...

    def check(self, mode: str) -> None:
        """Raise EngineError if requests in that mode cannot run here."""
        ...

    def stays(self, mode: str | None) -> bool:
        """Return whether nothing of a request in that mode leaves this machine; None: in no mode that it names."""
        ...

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """Yield the job's tokens; closing the generator stops the work everywhere. Raises EngineError."""
        ...

    async def enter(self, caller: Caller, entry: Entry, jobs: Sequence[Job]) -> Passage:
        """Admit a request: return when it may begin. It must then leave, once. Raises LimitReached. jobs: its answers,
        which `run` is called for next."""
        ...

    def leave(self, caller: Caller, entry: Entry, finished: bool) -> None:
        """Note that a request generates no more. finished: all its jobs have come to their end by themselves."""
        ...

    async def booked(self) -> None:
        """Return when the bills of all answers that have ended are on disk, or have waited too long for it."""
        ...

    async def caller(self, hashed: str | None) -> Caller | None:
        """Return the owner of the key with that hash, or None; before a key is made, anyone is anonymous."""
        ...

    async def account(self, key: str) -> Statement:
        """Return that account's usage and terms, without opening it."""
        ...

    async def devices(self) -> list[dict[str, Any]]:
        """Return the registered devices, one JSON object each, with at least a "name"."""
        ...

    async def fleet(self) -> Snapshot:
        """Return the endpoints that are up."""
        ...

    def under_way(self) -> list[UnderWay]:
        """Return the answers that this process gives now."""
        ...

    async def ready(self) -> dict[str, Any]:
        """Return what is up as a JSON object. Raises `app.api.http.errors.NotReady` while something is missing."""
        ...

    def observe(self, seen: Observation) -> None:
        """Count a request that is over."""
        ...

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        """Return the metrics of all replicas of the API and their content type."""
        ...


class OrderBackend(Protocol):
    """Carries out operators' orders. Raises Unavailable without an answer in time."""

    async def orders(self) -> OrdersTold:
        """Return the orders in force."""
        ...

    async def order_replica(self, name: str, drained: bool) -> OrdersTold:
        """Drain a replica, or have it take requests again. Raises NoSuchEndpoint, OrderRefused."""
        ...

    async def order_device(self, name: str, order: DeviceOrder) -> OrdersTold:
        """Stop or start a device, or change its link. Raises NoSuchEndpoint, OrderRefused."""
        ...


class AdminBackend(Protocol):
    """Keeps API keys, the terms of accounts and their usage."""

    async def usage(self, query: UsageQuery) -> list[Usage]:
        """Return sums of what requests have cost."""
        ...

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        """Change an account's terms and return it; 0 or an empty list lifts a limit. Raises KeyRefused."""
        ...

    async def keys(self) -> list[Key]:
        """Return all keys, the oldest first."""
        ...

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any], team: str) -> tuple[Key, str]:
        """Make a key; return it and its secret. Raises KeyRefused. team: "" for none."""
        ...

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        """Give a key a new secret; the old one stays valid for `grace_s` seconds. Raises KeyRefused."""
        ...

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any], team: str | None
    ) -> Key:
        """Change what is not None. Raises KeyRefused."""
        ...

    async def revoke_key(self, id: str) -> Key:
        """Revoke a key and return it. Raises KeyRefused."""
        ...

    async def teams(self) -> list[TeamStatement]:
        """Return all teams, by name."""
        ...

    async def make_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Make a team of keys. Raises KeyRefused."""
        ...

    async def change_team(self, name: str, changes: Mapping[str, Any]) -> TeamStatement:
        """Change a team's limits; 0 lifts one. Raises KeyRefused."""
        ...

    async def remove_team(self, name: str) -> None:
        """Remove a team without keys. Raises KeyRefused."""
        ...
