"""The API's backend over the live executor and router: every mode, with endpoints in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tandem.app.api.http.backend import ModelCard
from tandem.app.api.routes import create_api
from tandem.deployments.modes.base import Services
from tandem.deployments.modes.sketch.settings import ExpandingModel, SketchSettings
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.deployments.request.timeouts import Limits, Timeouts
from tandem.engine.base import Engine
from tandem.engine.sketch import sketch_format
from tandem.engine.text.tokenizer import Tokenizer
from tests.app.api.null_backend import NullBackend
from tests.deployments.faults import World
from tests.servers import served

PATIENT = Timeouts(connect_s=60.0, open_s=300.0, first_s=300.0, step_s=300.0)
"""Timeouts with which the mode of an answer does not depend on how busy the machine is."""
DEVICE = "phone"
WITH_DEVICE = ("device", "speculative", "race")


class ModesBackend(NullBackend):
    """Runs a job that names no mode in one mode, with a device where the mode has one. Races have no limit to their
    costs, and sketches are made wherever they can be.

    target, small: engines of one vocabulary, the cloud's and the device's.
    answers: of each that came to its end, what the executor has measured.
    """

    def __init__(self, mode: str, target: Engine, small: Engine, tokenizer: Tokenizer, ledger: Path) -> None:
        super().__init__(ledger=ledger)
        self.mode, self._tokenizer, self._target = mode, tokenizer, target
        self.default_reader_rate = 0.01  # readers who are never out of text wait for a busy device
        self.answers: list[JobStats] = []
        self.world = World(
            [target],
            devices={DEVICE: small},
            services=Services(format=sketch_format(tokenizer)),
            limits=Limits(timeouts=PATIENT),
            sketch=SketchSettings.model_validate(
                {
                    "sketching": {"name": "always", "parameters": {"shortest": 20}},
                    "models": {small.info.model: ExpandingModel(capability=1.0)},
                }
            ),
        )

    def models(self) -> list[ModelCard]:
        info = self._target.info
        return [ModelCard(id="null", context=info.context, vocabulary=info.vocabulary)]

    def tokenizer(self, model: str) -> Tokenizer:
        return self._tokenizer

    def check(self, mode: str) -> None:
        self.world.executor.check(mode)

    async def run(self, job: Job) -> AsyncGenerator[Delta, None]:
        mode = job.mode or self.mode
        job = replace(job, mode=mode, device=DEVICE if mode in WITH_DEVICE else None, budget=1.0)
        async with aclosing(self.world.executor.run(job)) as deltas:
            async for delta in deltas:
                if delta.finish is not None and delta.stats is not None:
                    self.answers.append(delta.stats)
                yield delta


@asynccontextmanager
async def serving(backend: ModesBackend) -> AsyncIterator[str]:
    """Serve it over HTTP; gives its address."""
    await backend.treasury.open()
    async with served(create_api(backend, backend)) as address:
        yield address
    await backend.world.executor.settled()
    await backend.treasury.close()
