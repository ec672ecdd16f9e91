"""A split model in virtual time: the live outer part and middle over timers, with empty hidden states."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from tandem.engine.base import EngineInfo, SplitInfo, Tensor
from tandem.engine.config import EngineConfig
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as CoreSequence
from tandem.engine.core.split.middle import MiddleEngine
from tandem.engine.core.split.outer import CoreOuterEngine, CoreOuterSession, OuterCore, OuterSequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import RoundTask
from tandem.engine.split.base import Judgement
from tandem.engine.split.hidden_states import Kind
from tandem.simulator.engines.engine import Compute, Hardware, TimedDriver, TimedRunner, work_s
from tandem.simulator.engines.guesses import Guesses
from tandem.simulator.engines.hidden_states import codec, rows
from tandem.simulator.engines.script import EOS, VOCAB_SIZE, VOCABULARY, Script
from tandem.simulator.hardware import Ends

SOON_S = 1e-6  # for results that are there already


def _info(model: str, context: int, split: SplitInfo, *capabilities: str) -> EngineInfo:
    return EngineInfo(model, VOCABULARY, VOCAB_SIZE, context, EOS, capabilities, split)


class TimedMiddleRunner(TimedRunner):
    """Runner that returns empty hidden states of the requested rows."""

    def run(self, work: Work, complete: Sequence[CoreSequence]) -> list[Outcome]:
        return [Outcome(0, 0, hidden=rows(s.window)) for s in complete]


def timed_middle(
    model: str,
    config: EngineConfig,
    compute: Compute,
    split: SplitInfo,
    *,
    token_bytes: float = 0.0,
) -> MiddleEngine:
    """Return a middle in virtual time; see `simulator.engines.engine.timed_engine`."""
    runner = TimedMiddleRunner(Script(), token_bytes * config.block_size)
    core = Core(runner, config, compute.hardware.loop.time)
    driver = TimedDriver(core, compute.hardware, compute.work_s)
    info = _info(model, config.kv_tokens, split, "forward")
    return MiddleEngine(core, driver, info, codec(split.hidden))


class TimedOuterRunner(TimedRunner):
    """Runner that drafts by guesses and judges by the script. drafts: whether there is a drafter."""

    def __init__(self, script: Script, guesses: Guesses, ends: Ends, drafts: bool) -> None:
        super().__init__(script, 0.0)
        self.drafts = drafts
        self._guesses, self._ends = guesses, ends

    def run(self, work: Work, complete: Sequence[CoreSequence]) -> list[Outcome]:
        for s, grant in work:
            assert isinstance(s, OuterSequence)
            s.shallow.put(s.computed, rows(grant))
        return [self._drafted(s) if _drafting(s) else Outcome(0, 0) for s in complete]

    def judge(self, s: OuterSequence, deep: object) -> Outcome:
        """Return the whole model's outcome of the session's task."""
        (outcome,) = super().run([], [s])
        return outcome

    def _drafted(self, s: CoreSequence) -> Outcome:
        guess = self._guesses.after(s.tokens[0], s.tokens[s.prompt_len :])
        return Outcome(0, int(guess.ids[0]), q=guess)

    def seconds(self, work: Work) -> float:
        """Return the seconds of a step."""
        ends = self._ends
        drafting = sum(_drafting(s) and s.computed + grant == s.goal for s, grant in work)
        if ends.heads is None:
            return work_s(ends.shallow, work) + (ends.head(drafting) if drafting else 0.0)
        return self._with_heads(work, ends.heads)

    def _with_heads(self, work: Work, heads_s: float) -> float:
        """Return the seconds of a step with draft heads, which draft at once from the model's last state; all drafted
        tokens then pass the first layers together."""
        began = False
        passing: Work = []
        for s, grant in work:
            assert isinstance(s, OuterSequence)
            if _drafting(s):
                began = began or not s.choices
                grant -= 1
            elif isinstance(s.task, RoundTask):
                grant += len(s.choices)
            if grant:
                passing.append((s, grant))
        chunks_s = work_s(self._ends.shallow, passing) if passing else 0.0
        return max(SOON_S, chunks_s + began * heads_s)


def _drafting(s: CoreSequence) -> bool:
    return isinstance(s.task, RoundTask) and not s.task.closing


class TimedOuterEngine(CoreOuterEngine):
    """Outer engine in which judging takes its time; the live one judges between two steps."""

    def __init__(
        self,
        hardware: Hardware,
        model: str,
        config: EngineConfig,
        split: SplitInfo,
        kind: Kind,
        runner: TimedOuterRunner,
        ends: Ends,
    ) -> None:
        self._hardware, self._ends = hardware, ends
        core = OuterCore(runner, config, hardware.loop.time)
        driver = TimedDriver(core, self._hardware, runner.seconds)
        info = _info(model, config.kv_tokens, split)
        super().__init__(core, driver, info, kind=kind, codec=codec(split.hidden))
        self._session = TimedOuterSession

    async def take(self, rows: int) -> None:
        """Return when the head has computed logits of `rows` rows."""
        done: asyncio.Future[None] = asyncio.Future(loop=self._hardware.loop)
        self._hardware.compute(self._ends.head(rows), partial(_set, done))
        await done


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():  # the waiter may have left
        done.set_result(None)


class TimedOuterSession(CoreOuterSession):
    _engine: TimedOuterEngine

    async def judge(self, deep: Tensor) -> Judgement:
        judgement = await super().judge(deep)
        await self._engine.take(deep.shape[0])
        return judgement
