"""What the API needs behind it: the models, the jobs' executor, and what is known of the machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deployments.accounts import Statement
from deployments.request.job import Delta, Job
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as clients name it. context: tokens of prompt and output together; vocabulary: its id."""

    id: str
    context: int
    vocabulary: str


class Backend(Protocol):
    """All of it is called on the API's event loop and must not block it."""

    @property
    def default_reader_rate(self) -> float:
        """Tokens/s that a chat's reader takes in where the client does not say; 0: nobody reads along."""
        ...

    def models(self) -> Sequence[ModelCard]: ...

    def tokenizer(self, model: str) -> Tokenizer:
        """Of a model that `models` names."""
        ...

    def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        """The job's tokens; closing the generator stops the work everywhere. Raises EngineError."""
        ...

    async def account(self, key: str) -> Statement:
        """The account of that key; asking does not open one."""
        ...

    async def change_account(self, key: str, budget: float | None, exchange_rate: float | None) -> Statement:
        """The same, after what is not None was set."""
        ...

    async def devices(self) -> list[dict[str, Any]]:
        """The registered devices, one JSON object each, with at least a "name"."""
        ...

    async def ready(self) -> dict[str, Any]:
        """What is up, as a JSON object; raises `app.api.errors.NotReady` while something is missing."""
        ...
