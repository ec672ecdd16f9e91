"""The embedded family in this process: its target in the cloud, its small models on devices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tandem.benchmarks.executor import Sketching, local_executor, new_job
from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sketch.mode import Sketched
from tandem.deployments.modes.sketch.settings import SketchOptions, SketchSettings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Delta, Job
from tandem.deployments.request.pools import VERIFIER
from tandem.engine import family
from tandem.engine.base import Engine, Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine
from tandem.engine.sketch import sketch_format
from tandem.engine.sketch.base import Question
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.engine.translated.engine import Translated
from tandem.policies.sketch.confidence import Candidate
from tandem.policies.speculation.window import StaticWindow
from tandem.training.family.encyclopedia.items import Item
from tandem.training.family.prompts import answer_prompt

TARGET = "target"
EXPANDERS = tuple(name for name in family.NAMES if name != TARGET)
MAX_TOKENS = 320
"""Most tokens of an answer; the longest true one has about 290."""
TEXT = Tokenizer.load(family.path(TARGET))


@dataclass(frozen=True, slots=True)
class Answer:
    """text: of the answer.
    tokens: of it.
    llm_tokens: that the target wrote for it, in sketches and otherwise.
    sketched: whether small models have written it from a sketch.
    """

    text: str
    tokens: int
    llm_tokens: int
    sketched: bool

    @classmethod
    def of(cls, deltas: Sequence[Delta]) -> Self:
        """Return the outcome of a job."""
        ids, stats = [token for delta in deltas for token in delta.ids], deltas[-1].stats
        assert stats is not None
        told = Sketched.of(stats)
        sketched = told.sketches > told.finished
        return cls(TEXT.decode(ids), len(ids), stats.used.server_out, sketched)


def ask(item: Item, mode: str, device: str | None = None, show_sketch: bool = False) -> Job:
    """Return the item's question as a greedy request. show_sketch: whether the answer begins with its sketch."""
    question = _question(item)
    job = new_job(question.prompt, Sampling(max_tokens=MAX_TOKENS), mode, device, question)
    return replace(job, options=(SketchOptions(show_sketch=show_sketch),))


def _question(item: Item) -> Question:
    return Question(TEXT.encode(answer_prompt(item.question)), text=item.question)


def sketching(settings: SketchSettings) -> Sketching:
    """Return sketches as the application makes them, but without the rule on the question's wording."""
    return Sketching(settings.model_copy(update={"questions": "all"}), sketch_format(TEXT), TEXT.vocabulary)


class Models:
    """Engines of the target and of these models, at this machine's own speed."""

    def __init__(self, names: Sequence[str], sessions: int, threads: int = 1) -> None:
        """sessions: that each works on at once."""
        config = EngineConfig(max_sessions=sessions)
        self._engines: dict[str, CoreEngine] = {
            name: load(family.path(name), config, device="cpu", threads=threads) for name in (TARGET, *names)
        }
        self._native = load_profile("native")

    def executor(self, devices: Sequence[str], settings: SketchSettings | Mapping[str, Any]) -> Executor:
        """Return an executor with a device for each of these models, named "0" and so on."""
        there = {str(n): Device(self._engines[name], self._native) for n, name in enumerate(devices)}
        engines: dict[str, Engine] = {VERIFIER: self._engines[TARGET]}
        engines |= {name: spoken(device, device.info.model) for name, device in there.items()}

        def dial(endpoint: EndpointInfo) -> Engine:
            return engines[endpoint.name]

        return local_executor(
            dial,
            StaticWindow,
            devices=[device.record(name) for name, device in there.items()],
            sketching=sketching(SketchSettings.model_validate(settings)),
        )

    async def sentences(self, item: Item) -> AsyncIterator[tuple[str, int, dict[str, Candidate]]]:
        """Yield each note of the target's sketch: its text, its share of the expected tokens, and the sentence that
        each of the other models writes from it."""
        question, form = _question(item), sketch_format(TEXT)
        asked = form.sketch(question)
        assert asked is not None
        ids, _ = await self._write(TARGET, asked)
        sketch = form.read(ids, ended=True)
        for i, note in enumerate(sketch.notes):
            found = {}
            for name in [name for name in self._engines if name != TARGET]:
                ids, log_p = await self._write(name, form.expand(question, sketch, i))
                found[name] = Candidate(form.text(ids), len(ids), log_p)
            yield form.text(note), (sketch.expected or 150) // len(sketch.notes), found

    async def _write(self, name: str, prompt: Sequence[int]) -> tuple[list[int], float]:
        """Return a model's tokens, and the logarithm of the probability that it gave them."""
        session = await self._engines[name].open(prompt, Sampling(max_tokens=MAX_TOKENS, logprobs=0))
        ids, log_p = list[int](), 0.0
        async for tokens in session.generate():
            ids += tokens.ids
            log_p += sum(each.logprob for each in tokens.logprobs or ())
        await session.cancel()
        return ids, log_p

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()


def spoken(engine: Engine, model: str) -> Engine:
    """Driven in the target's tokens, whichever its model's are."""
    there = Tokenizer.load(family.path(model))
    return engine if there.vocabulary == TEXT.vocabulary else Translated(engine, TEXT, there)
