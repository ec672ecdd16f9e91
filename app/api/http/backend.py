"""What the API needs behind it: the models, the jobs' executor, and what is known of the machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.app.api.http.settings import ApiSettings
from tandem.deployments.access.accounts import Statement
from tandem.deployments.access.keys import Caller, Key, Role
from tandem.deployments.admission.controller import Entry, Passage
from tandem.deployments.control.metrics import Observation
from tandem.deployments.request.job import Delta, Job
from tandem.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as clients name it. context: tokens of prompt and output together; vocabulary: its id."""

    id: str
    context: int
    vocabulary: str


class Backend(Protocol):
    """All of it is called on the API's event loop and must not block it."""

    @property
    def api(self) -> ApiSettings:
        """What anybody is allowed."""
        ...

    @property
    def default_reader_rate(self) -> float:
        """Tokens/s that a chat's reader takes in where the client does not say; 0: nobody reads along."""
        ...

    @property
    def behind_proxy(self) -> bool:
        """Whether requests come from a proxy, which is to say whose they are."""
        ...

    def models(self) -> Sequence[ModelCard]: ...

    def tokenizer(self, model: str) -> Tokenizer:
        """Of a model that `models` names."""
        ...

    def check(self, mode: str) -> None:
        """Raises EngineError for a mode in which nothing can be driven from here."""
        ...

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """The job's tokens; closing the generator stops the work everywhere. Raises EngineError."""
        ...

    def enter(self, caller: Caller, entry: Entry) -> AbstractAsyncContextManager[Passage]:
        """Entered when the request may begin, left when it is over. Raises LimitReached."""
        ...

    async def caller(self, hashed: str | None) -> Caller | None:
        """Who has the key with that hash; None: nobody. As long as there are no keys, it is anybody."""
        ...

    async def account(self, key: str) -> Statement:
        """The account of that key; asking does not open one."""
        ...

    async def settle(self, key: str, changes: Mapping[str, Any]) -> Statement:
        """The same, after its terms were changed; 0 or an empty list lifts a limit. Raises KeyRefused."""
        ...

    async def keys(self) -> list[Key]:
        """The oldest first."""
        ...

    async def make_key(self, name: str, role: Role, changes: Mapping[str, Any]) -> tuple[Key, str]:
        """A new one and its secret. Raises KeyRefused."""
        ...

    async def rotate_key(self, id: str, grace_s: float) -> tuple[Key, str]:
        """A new secret for it; the old one holds so long. Raises KeyRefused."""
        ...

    async def change_key(
        self, id: str, name: str | None, role: Role | None, changes: Mapping[str, Any]
    ) -> Key:
        """Set what is not None. Raises KeyRefused."""
        ...

    async def revoke_key(self, id: str) -> Key:
        """It opens nothing any more. Raises KeyRefused."""
        ...

    async def devices(self) -> list[dict[str, Any]]:
        """The registered devices, one JSON object each, with at least a "name"."""
        ...

    async def ready(self) -> dict[str, Any]:
        """What is up, as a JSON object; raises `app.api.http.errors.NotReady` while something is missing."""
        ...

    def observe(self, seen: Observation) -> None:
        """A request is over: count it."""
        ...

    async def metrics(self, openmetrics: bool) -> tuple[bytes, str]:
        """What all replicas of the API have counted and how things stand, as `deployments.control.metrics` has it."""
        ...
