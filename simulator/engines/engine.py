"""The live engine's core in virtual time: a timer replaces the forward pass, a script its tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from tandem.engine.base import EngineInfo
from tandem.engine.config import EngineConfig, HostMemory
from tandem.engine.core.engine import Command, CoreEngine, Receive
from tandem.engine.core.host_memory import EmulatedBus, HostCopies
from tandem.engine.core.runner import Outcome, Work
from tandem.engine.core.sequence import Sequence as CoreSequence
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import DraftTask
from tandem.simulator.clock import Handle, VirtualLoop
from tandem.simulator.engines.script import EOS, VOCAB_SIZE, VOCABULARY, Script
from tandem.simulator.hardware import StepTimer

SHORTEST_WAIT_S = 1e-6  # of an idle engine until a timer is due


class Hardware:
    """Hardware that engines share. Overlapping steps get equal shares of it, as processes do on a CPU or a GPU.

    busy_s: seconds in which it computed.
    alone_s, alone_s2: sums of the seconds that its steps take alone, and of their squares.
    steps: number of them.
    """

    __slots__ = ("_since_s", "_speed", "_steps", "_timer", "alone_s", "alone_s2", "busy_s", "loop", "steps")

    def __init__(self, loop: VirtualLoop, speed: Callable[[float], float] | None = None) -> None:
        """speed: share of its speed at a time, seconds; None: always 1."""
        self.busy_s = self.alone_s = self.alone_s2 = 0.0
        self.steps = 0
        self.loop, self._speed = loop, speed
        self._steps: list[_Step] = []  # running
        self._since_s = 0.0  # when their rest was last computed
        self._timer: Handle | None = None  # of the step that ends first

    def compute(self, seconds: float, done: Callable[[], object]) -> None:
        """Begin a step that would take `seconds` alone, at full speed."""
        if self._speed is not None:
            seconds /= self._speed(self.loop.time())
        self.steps += 1
        self.alone_s += seconds
        self.alone_s2 += seconds * seconds
        self._reckon()
        self._steps.append(_Step(seconds, done))
        self._arm()

    def _reckon(self) -> None:
        """Subtract the work done since the last call."""
        now, steps = self.loop.time(), self._steps
        if steps:
            seconds = now - self._since_s
            self.busy_s += seconds
            for step in steps:
                step.left_s -= seconds / len(steps)
        self._since_s = now

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        steps = self._steps
        first = min(steps, key=_left_s)
        self._timer = self.loop.call_at(self._since_s + first.left_s * len(steps), self._end, first)

    def _end(self, step: _Step) -> None:
        self._timer = None
        self._reckon()
        self._steps.remove(step)
        if self._steps:
            self._arm()
        step.done()


class _Step:
    """A running step. left_s: seconds that it would still take alone."""

    __slots__ = ("done", "left_s")

    def __init__(self, left_s: float, done: Callable[[], object]) -> None:
        self.left_s, self.done = left_s, done


_left_s = attrgetter("left_s")


class Alarm:
    """Timer of an engine's next turn."""

    __slots__ = ("_handle", "_loop", "_turn")

    def __init__(self, loop: VirtualLoop, turn: Callable[[], object]) -> None:
        self._loop, self._turn = loop, turn
        self._handle: Handle | None = None

    def ring_at(self, when: float) -> None:
        """Take the turn at `when`, unless one is due before."""
        if self._handle is not None:
            if self._handle.when() <= when:
                return
            self._handle.cancel()
        loop = self._loop
        # in the loop's next round, not at once: commands of the same moment are seen together
        self._handle = loop.call_soon(self._ring) if when <= loop.time() else loop.call_at(when, self._ring)

    def stop(self) -> None:
        """Cancel the turn for good and release its callback."""
        if self._handle is not None:
            self._handle.cancel()
        self._turn = _nothing

    def _ring(self) -> None:
        self._handle = None
        self._turn()


def _nothing() -> None:
    pass


Chunk = tuple[int, int, bool]
"""Positions of one session in a step: how many, after how many, and whether they are a window rather than prompt."""


def step_s(timer: StepTimer, chunks: Iterable[Chunk], padded: bool) -> float:
    """Return the seconds of a step. padded: whether all sequences of a batch cost as much as its longest one and its
    widest window."""
    tokens = sequences = context = longest = widest = 0
    prefills: list[tuple[int, int]] = []
    for grant, computed, is_window in chunks:
        tokens += grant
        if is_window:
            sequences += 1
            context += computed
            longest = max(longest, computed)
            widest = max(widest, grant)
        else:
            prefills.append((grant, computed))
    if padded:
        context = sequences * longest
        tokens = sequences * widest + sum(chunk for chunk, _ in prefills)
    return timer.step_s(tokens, sequences, context, prefills)


def work_s(timer: StepTimer, work: Work, padded: bool = False) -> float:
    """Return the seconds of a core's step; see `step_s`."""
    return step_s(timer, [(grant, s.computed, grant == s.window) for s, grant in work], padded)


@dataclass(frozen=True, slots=True)
class Compute:
    """An engine's use of hardware.

    hardware: may be shared with other engines.
    timer: gives the seconds of a step.
    padded: see `step_s`.
    """

    hardware: Hardware
    timer: StepTimer
    padded: bool = False

    def work_s(self, work: Work) -> float:
        """Return the seconds of a core's step."""
        return work_s(self.timer, work, self.padded)


class TimedRunner:
    """Runner with scripted tokens. block_bytes: of KV cache."""

    def __init__(self, script: Script, block_bytes: float) -> None:
        self._script, self._block_bytes = script, block_bytes

    def run(self, work: Work, complete: Sequence[CoreSequence]) -> list[Outcome]:
        script, outcomes = self._script, []
        for s in complete:
            task, position, number = s.task, len(s.tokens) - s.prompt_len, script.number(s.tokens)
            assert task is not None
            if isinstance(task, DraftTask):
                outcomes.append(Outcome(0, script.draft(number, position)[0]))
            elif s.sampling.forced:
                accepted = len(task.drafts)
                scores = script.scores(number, position, accepted + 1)
                outcomes.append(Outcome(accepted, script.own(number, position + accepted), scores))
            else:
                outcomes.append(Outcome(*script.judge(number, position, task.drafts)))
        return outcomes

    def copy_block(self, source: int, target: int) -> None:
        """Do nothing: there are no keys and values."""

    def free_block(self, block: int) -> None:
        """Do nothing."""

    def host_copies(self, settings: HostMemory, clock: Callable[[], float]) -> HostCopies:
        return EmulatedBus(self._block_bytes, settings, clock)


class TimedDriver:
    """Drives a core on a virtual clock: the counterpart of `engine.core.thread.ThreadDriver`."""

    def __init__(
        self,
        core: Core,
        hardware: Hardware,
        seconds: Callable[[Work], float],
    ) -> None:
        """seconds: duration of a step."""
        self.running = True
        self._core, self._hardware, self._seconds = core, hardware, seconds
        self._loop = loop = hardware.loop
        self._commands: deque[Command] = deque()
        self._computing = False  # whether a step is running
        self._hung = False
        self._alarm = Alarm(loop, self._turn)

    def submit(self, command: Command) -> None:
        self._commands.append(command)
        if not self._computing:
            self._alarm.ring_at(self._loop.time())

    def deliver(self, receive: Receive, outcome: Any) -> None:
        receive(outcome)

    def hang(self) -> None:
        """Have the step that is running, or the next one, never end."""
        self._hung = True

    async def stop(self) -> None:
        self.running = False
        self._alarm.stop()
        self._commands.clear()

    def _turn(self) -> None:
        if not self.running or self._computing:
            return
        core, commands = self._core, self._commands
        while commands:
            commands.popleft()()
        work = core.form()
        while work is not None and not work:
            work = core.form()
        if work is None:
            if (idle_s := core.idle_s) is not None:
                self._alarm.ring_at(self._loop.time() + max(idle_s, SHORTEST_WAIT_S))
            return
        self._computing = True
        self._hardware.compute(self._seconds(work), partial(self._end, work))

    def _end(self, work: Work) -> None:
        if self._hung:
            return
        self._computing = False
        if self.running:
            core = self._core
            core.conclude(work, core.runner.run(work, core.completed(work)))
            self._turn()


def timed_engine(
    model: str,
    config: EngineConfig,
    compute: Compute,
    script: Script,
    *,
    context: int,
    token_bytes: float = 0.0,
) -> CoreEngine:
    """Return an engine in virtual time.

    context: most tokens of prompt and output.
    token_bytes: KV cache per token.
    """
    runner = TimedRunner(script, token_bytes * config.block_size)
    core = Core(runner, config, compute.hardware.loop.time)
    driver = TimedDriver(core, compute.hardware, compute.work_s)
    info = EngineInfo(model, VOCABULARY, VOCAB_SIZE, context, EOS)
    return CoreEngine(core, driver, info)
