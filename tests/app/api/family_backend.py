"""The API's backend with a real model: the smallest of the embedded family, which knows no JSON and no tools, and so
needs its grammars."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from tandem.app.api.http.backend import ModelCard
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tests.app.api.null_backend import NullBackend

FOLDER = family.path("tiny")
TOKENIZER = Tokenizer.load(FOLDER)


class FamilyBackend(NullBackend):
    """Runs jobs on the model alone."""

    def __init__(self, ledger: Path, folder: Path = FOLDER) -> None:
        super().__init__(ledger=ledger)
        self.model: CoreEngine = load(folder, EngineConfig(kv_blocks=256), threads=1)
        self._tokenizer = TOKENIZER if folder == FOLDER else Tokenizer.load(folder)

    def models(self) -> list[ModelCard]:
        return [ModelCard(id="null", context=self.model.info.context, vocabulary=self._tokenizer.vocabulary)]

    def tokenizer(self, model: str) -> Tokenizer:
        return self._tokenizer

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        self.jobs.append(job)
        session = await self.model.open(job.prompt, job.sampling)
        try:
            stats = JobStats(mode="cloud")
            async with aclosing(session.generate()) as stream:
                async for tokens in stream:
                    stats.tokens += len(tokens.ids)
                    origins = [Origin.CLOUD] * len(tokens.ids)
                    ended = stats if tokens.finish else None
                    yield Delta(tokens.ids, origins, tokens.finish, stats=ended, logprobs=tokens.logprobs)
        finally:
            await session.cancel()
            self.closed.release()
