"""The live side of the calibration of mode sketch: a target that sketches, and emulated devices that expand.

Both are in processes of their own, driven by the executor over the wire. Questions have long answers, which end by
themselves. What the target would write of a question's sketch, and of the answer in full, and what the devices' model
would write from that sketch, the engines are asked afterwards: with greedy decoding it is what they wrote before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager

import msgspec

from tandem.benchmarks.calibration.live import DRAFTER, LONGEST, PROFILE, Live, Seen
from tandem.benchmarks.executor import device_record, local_executor, new_job
from tandem.benchmarks.pice.embedded import TEXT, sketching
from tandem.benchmarks.processes import engine_process
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import Connection, connect
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.sketch.settings import SketchSettings
from tandem.deployments.pools.engines import TorchSettings, VllmSettings
from tandem.deployments.request.job import Job
from tandem.deployments.request.pools import VERIFIER
from tandem.engine.base import Engine, Sampling
from tandem.engine.sketch import sketch_format
from tandem.engine.sketch.base import Question
from tandem.policies.speculation.window import StaticWindow
from tandem.simulator.workload import Outline
from tandem.training.family.encyclopedia.items import LONG_KINDS
from tandem.training.family.prompts import answer_prompt, heldout

DEVICES = 4
NAMES = tuple(f"device-{i}" for i in range(DEVICES))
SMALL = msgspec.structs.replace(PROFILE, batch=4)
SETTINGS = SketchSettings(parallelism=SMALL.batch)  # what a device decodes at once it is taken to expand
EXPANDING = SETTINGS.models[SMALL.model]
FORMAT = sketch_format(TEXT)
ASKING = 2  # marks beside a question, its notes, and one of them again
ASKED_AT_ONCE = 8
ANSWER_TOKENS = 140  # about so many


def questions(count: int, seed: int) -> list[list[int]]:
    """Prompts of questions that the models were not trained on."""
    return [TEXT.encode(answer_prompt(item.question)) for item in heldout(count, LONG_KINDS, seed)]


class Writers:
    """Texts of target and small model for questions; each is generated once."""

    def __init__(self, target: Engine, small: Engine) -> None:
        self._target, self._small = target, small
        self._wrote: dict[tuple[int, ...], tuple[int, Outline]] = {}

    async def asked(self, prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], tuple[int, Outline]]:
        """Return, by prompt, the tokens of its answer in full, and the outline of a sketched one."""
        new = {tuple(prompt) for prompt in prompts} - self._wrote.keys()
        places = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(prompt: tuple[int, ...]) -> None:
            async with places:
                full = await _greedy(self._target, prompt, LONGEST)
                self._wrote[prompt] = len(full), await self._outline(Question(prompt))

        await asyncio.gather(*map(ask, sorted(new)))
        return self._wrote

    async def _outline(self, question: Question) -> Outline:
        prompt = FORMAT.sketch(question)
        assert prompt is not None
        written = await _greedy(self._target, prompt, LONGEST // 2)
        ended = written[-1] == FORMAT.end
        sketch = FORMAT.read(written, ended)
        sentences = [
            await _greedy(self._small, FORMAT.expand(question, sketch, i), LONGEST)
            for i in range(len(sketch.notes))
        ]
        return Outline(
            sketch.expected,
            len(written) - ended,
            tuple(spans(written, sketch.notes)),
            tuple(len(FORMAT.sentence(question, sentence, i)) for i, sentence in enumerate(sentences)),
        )


def spans(written: Sequence[int], notes: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yield where each of the notes begins and ends in what was written."""
    at = 0
    for note in notes:
        while tuple(written[at : at + len(note)]) != tuple(note):
            at += 1
        yield at, at + len(note)
        at += len(note)


async def _greedy(engine: Engine, prompt: Sequence[int], most: int) -> list[int]:
    session = await engine.open(prompt, Sampling(max_tokens=most))
    try:
        async with aclosing(session.generate()) as stream:
            return [token async for tokens in stream for token in tokens.ids]
    finally:
        await session.cancel()


class Sketches(Live):
    """One target, and devices that share one engine."""

    def __init__(
        self,
        target: Connection,
        small: Connection,
        writers: Writers,
        prompts: Sequence[Sequence[int]],
        waits: bool,
    ) -> None:
        super().__init__("sketch", target.engine("engine"), prompts, waits)
        self._small, self._writers = small, writers

    def executor(self, rtt_s: float) -> Executor:
        engines: dict[str, Engine] = {VERIFIER: self.target} | {
            name: self._small.engine(name, Link(LinkProfile(rtt_s=rtt_s))) for name in NAMES
        }
        return local_executor(
            lambda endpoint: engines[endpoint.name],
            StaticWindow,
            devices=[_record(name, rtt_s) for name in NAMES],
            sketching=sketching(SETTINGS),
        )

    def job(self, seen: Seen) -> Job:
        return new_job(
            seen.prompt, Sampling(max_tokens=LONGEST), self.mode, question=Question(tuple(seen.prompt))
        )

    async def run(self, rtt_s: float, arrivals_s: Sequence[float]) -> list[Seen]:
        seen = await super().run(rtt_s, arrivals_s)
        wrote = await self._writers.asked([one.prompt for one in seen])
        for one in seen:
            one.in_full, one.outline = wrote[tuple(one.prompt)]
        return seen


def _record(name: str, rtt_s: float) -> DeviceRecord:
    return msgspec.structs.replace(
        device_record(name, rtt_s, SMALL.prefill_s(1)),
        model=SMALL.model,
        vocabulary=TEXT.vocabulary,
        capacity=SMALL.sessions,
        decode_token_s=SMALL.decode_s(1),
    )


@asynccontextmanager
async def sketching_models(
    target: TorchSettings | VllmSettings, prompts: Sequence[Sequence[int]]
) -> AsyncIterator[Callable[[], Live]]:
    """Target and devices; makes a deployment of them."""
    with engine_process(target) as target_at, engine_process(DRAFTER, DEVICES, SMALL) as small_at:
        there, here = await connect(target_at), await connect(small_at)
        writers = Writers(there.engine("engine"), here.engine("engine"))
        waits = isinstance(target, VllmSettings)
        yield lambda: Sketches(there, here, writers, prompts, waits)
        await there.close()
        await here.close()
