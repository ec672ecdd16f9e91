"""The outer part of a split model, see `engine.split.base`: drafting, judging and branches over a core.

Shallow layers and adapter are one stack over one paged KV cache, in which the core's steps compute prompts and drafts.
Their hidden states stay in host memory until the session ends, so that each is computed once. Drafts are tentative
tokens of the sequence, each with the distribution it was drawn from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tandem.engine.base import EngineInfo, InvalidRequest, Sampling, Tensor, Verdict
from tandem.engine.config import EngineConfig
from tandem.engine.core.engine import CoreEngine, CoreSession, Driver, Receive, Run
from tandem.engine.core.runner import Outcome, Runner, Work
from tandem.engine.core.sequence import Sequence as CoreSequence
from tandem.engine.core.split.rows import Rows
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import RoundTask, ShallowTask, VerifyTask
from tandem.engine.split.base import GoOn, Judgement, Proposal, Shallow, always
from tandem.engine.split.hidden_states import CODEC, Codec, Kind
from tandem.engine.text.detokenizer import Spelling
from tandem.engine.text.grammar import Grammars

ALTERNATIVES = 8
"""Alternatives for the last drafted token that a proposal carries."""


class SplitChoice(NamedTuple):
    """The distribution that a token was drafted from: the likeliest ids and their probabilities, best first; and the
    token."""

    ids: np.ndarray
    probabilities: np.ndarray
    token: int

    @property
    def probability(self) -> float:
        return float(self.probabilities[self.ids == self.token].sum())

    @property
    def alternatives(self) -> list[tuple[int, float]]:
        """(id, probability) of the token, and then of the others."""
        pairs = zip(self.ids.tolist(), self.probabilities.tolist(), strict=True)
        return sorted(pairs, key=lambda pair: pair[0] != self.token)


class OuterSequence(CoreSequence):
    """A prompt and its output at the outer part.

    shallow: hidden states after the shallow layers.
    sent: leading positions whose states the middle has.
    choices: distributions of the tentative tokens.
    branches: sequences that go on from alternatives for the last token.
    stem: for a branch, the sequence that has it; None otherwise.
    branched_s: when the branches began, on the core's clock.
    stepped_s: when the longest branch had its last token.
    """

    __slots__ = ("branched_s", "branches", "choices", "sent", "shallow", "stem", "stepped_s")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shallow = Rows()
        self.sent = 0
        self.choices: list[SplitChoice] = []
        self.branches: list[OuterSequence] = []
        self.stem: OuterSequence | None = None
        self.branched_s = self.stepped_s = 0.0

    @property
    def reusable(self) -> int:
        """Leading tokens that may be taken from cached prefixes: none without hidden states."""
        return min(super().reusable, self.shallow.end)

    def recede(self, tokens: int) -> None:
        super().recede(tokens)
        self.shallow.cut(tokens)
        self.sent = min(self.sent, tokens)

    def replace(self, position: int, tokens: Collection[Any]) -> int:
        self.choices.clear()
        return super().replace(position, tokens)

    def stated(self) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
        """Return the distributions of the tentative tokens, (ids, probabilities), [tokens, width] each; None for greedy
        ones."""
        if self.sampling.greedy or not self.choices:
            return None, None
        return np.stack([c.ids for c in self.choices]), np.stack([c.probabilities for c in self.choices])

    def fork(self, number: int, token: int) -> OuterSequence:
        """Return a copy with another last token."""
        output = [*self.tokens[self.prompt_len : -1], token]
        branch = OuterSequence(number, self.prompt, output, self.sampling, -1)
        branch.stem, branch.ends = self, self.ends
        branch.matcher = None if self.matcher is None else self.matcher.copy()
        branch.computed = min(self.computed, len(self.tokens) - 1)
        branch.shallow = Rows(branch.computed)
        return branch


class OuterRunner(Runner, Protocol):
    """A runner that also puts hidden states into `OuterSequence.shallow`.

    drafts: whether there is an adapter.
    """

    drafts: bool

    def judge(self, s: OuterSequence, deep: np.ndarray) -> Outcome:
        """Return the outcome of the session's VerifyTask, whose rows after the middle are `deep`, [window, hidden]."""
        ...


class OuterCore(Core):
    """A core of outer sessions."""

    def __init__(self, runner: OuterRunner, config: EngineConfig, *args: Any, **policies: Any) -> None:
        super().__init__(runner, config, *args, **policies)
        self.outer = runner

    def shallow(self, s: OuterSequence, task: ShallowTask) -> None:
        """Compute the task's positions except the last token's, and deliver."""
        self._check_idle(s)
        task.end = min(task.end, s.confirmed - 1)
        if s.shallow.end >= task.end:
            task.deliver()
            return
        self._begin(s, task)
        s.goal = task.end
        self._changed()

    def draft(self, s: OuterSequence, task: RoundTask) -> None:
        """Go on drafting from the tentative tokens that fit the task."""
        self._check_idle(s)
        room = s.sampling.max_tokens - (s.confirmed - s.prompt_len) - 1  # the model's own token takes one
        task.length = min(task.length, room) if self.outer.drafts and s.finish is None else 0
        stand, ended = _standing(s, task)
        if stand < len(s.choices):
            del s.tokens[s.confirmed + stand :], s.choices[stand:]
            s.end()
            self.memory.roll_back(s, s.confirmed + stand)
        if ended:
            self._close(s, task)
        elif s.computed == len(s.tokens):  # the last one's logits are gone
            self.memory.roll_back(s, s.computed - 1)
            self._begin(s, task)
        else:
            self._begin(s, task)
        self._changed()

    def branch(self, s: OuterSequence, numbers: Sequence[int], task: RoundTask) -> int:
        """Draft on from alternatives for the last tentative token, one a number, each with a copy of the task; return
        how many there are."""
        self._check_idle(s)
        self.drop(s)
        if not s.choices or not s.admitted:
            return 0
        for number, (token, probability) in zip(numbers, s.choices[-1].alternatives, strict=False):
            if token in s.ends or not probability:  # it would end the output, or break its form
                continue
            branch = s.fork(number, token)
            if not self.memory.fork(s, branch):
                break
            s.branches.append(branch)
            self.draft(branch, RoundTask(task.length, task.go_on, False, task.deliver))
        s.branched_s = s.stepped_s = self.clock()
        return len(s.branches)

    def judge(self, s: OuterSequence, deep: np.ndarray) -> Judgement:
        """Judge the tentative tokens at once, between two steps."""
        self._check_idle(s)
        if s.finish is not None:
            return Judgement(Verdict(0, [], s.finish), s.sent)
        drafts = s.tokens[s.confirmed :]
        if len(deep) != len(drafts) + 1 or s.sent < len(s.tokens):
            raise InvalidRequest(f"{len(deep)} rows do not judge the {len(drafts)} tokens that were proposed")
        verdicts: list[Verdict | InvalidRequest] = []
        q_ids, q_probs = s.stated()
        task = VerifyTask(drafts, q_ids, q_probs, verdicts.append)
        del s.tokens[s.confirmed :]
        s.choices.clear()
        self._begin(s, task)
        self._take(s, self.outer.judge(s, deep), self.clock())
        steps = max((len(branch.choices) for branch in s.branches), default=0)
        ready = self._adopt(s)
        self.drop(s)
        self._changed()
        if isinstance(verdict := verdicts[0], InvalidRequest):
            raise verdict
        return Judgement(verdict, s.sent, ready, steps, s.stepped_s - s.branched_s if steps else 0.0)

    def drop(self, s: OuterSequence) -> None:
        """Remove the session's branches."""
        for branch in s.branches:
            self.memory.remove(branch)
            branch.end()
        s.branches.clear()

    def form(self) -> Work | None:
        for s in list(self.memory.waiting):  # a preempted branch is not worth computing again
            assert isinstance(s, OuterSequence)
            if s.stem is not None:
                s.stem.branches.remove(s)
                self.memory.remove(s)
                s.end()
        return super().form()

    def extend(self, s: CoreSequence, position: int, tokens: list[int] | np.ndarray) -> None:
        super().extend(s, position, tokens)
        assert isinstance(s, OuterSequence)
        self.drop(s)

    def cancel(self, s: CoreSequence) -> None:
        assert isinstance(s, OuterSequence)
        self.drop(s)
        super().cancel(s)

    def _take(self, s: CoreSequence, outcome: Outcome, now: float) -> None:
        task = s.task
        if isinstance(s, OuterSequence) and isinstance(task, RoundTask):
            self._drafted(s, task, outcome)
        elif isinstance(task, ShallowTask):
            s.end()
            task.deliver()
        else:
            super()._take(s, outcome, now)

    def _drafted(self, s: OuterSequence, task: RoundTask, outcome: Outcome) -> None:
        if task.closing:
            self.stats.tokens_prefilled += s.window  # its logits are not needed
            s.end()
            task.deliver()
            return
        assert outcome.q is not None
        s.tokens.append(outcome.token)
        s.choices.append(SplitChoice(*outcome.q, outcome.token))
        self.stats.tokens_drafted += 1
        if s.stem is not None and len(s.choices) == max(len(branch.choices) for branch in s.stem.branches):
            s.stem.stepped_s = self.clock()
        if not _ends(s, task, len(s.choices)):
            s.goal += 1
            self.memory.wake(s)
            return
        s.end()
        self._close(s, task)

    def _close(self, s: OuterSequence, task: RoundTask) -> None:
        """End a round, after computing the last tentative token if the task wants its hidden states."""
        if not task.closes or s.shallow.end >= len(s.tokens):
            task.deliver()
            return
        task.closing = True
        self._begin(s, task)

    def _adopt(self, s: OuterSequence) -> int:
        """Continue as the branch that begins with the present output; return how many tokens it has drafted beyond."""
        length = len(s.tokens)
        for branch in s.branches:
            new = branch.tokens[length:]
            if (
                s.finish is None
                and new
                and branch.tokens[:length] == s.tokens
                and self.memory.adopt(s, branch)
            ):
                s.tokens += new
                s.choices = branch.choices[-len(new) :]
                s.shallow.put(branch.shallow.start, branch.shallow.between(branch.shallow.start, s.computed))
                s.end()
                return len(new)
        return 0


def _ends(s: OuterSequence, task: RoundTask, count: int) -> bool:
    """Return whether a draft ends with the tentative token number `count`. `go_on` is asked once for each."""
    return (
        count >= task.length
        or s.tokens[s.confirmed + count - 1] in s.ends
        or not task.go_on(s.choices[count - 1].probability)
    )


def _standing(s: OuterSequence, task: RoundTask) -> tuple[int, bool]:
    """Return how many tentative tokens fit the task, and whether the draft ends with them."""
    if task.length < 1:
        return 0, True
    for count in range(1, len(s.choices) + 1):
        if _ends(s, task, count):
            return count, True
    return len(s.choices), False


class CoreOuterEngine(CoreEngine):
    """Sessions of the outer part of a split model.

    kind: of its sessions' hidden states on the wire, unless they are told another.
    """

    def __init__(
        self,
        core: OuterCore,
        driver: Driver,
        info: EngineInfo,
        tokenizer: Spelling | None = None,
        kind: Kind = "float32",
        codec: Codec = CODEC,
        grammars: Grammars | None = None,
    ) -> None:
        assert info.split is not None
        super().__init__(core, driver, info, tokenizer, grammars)
        self.split, self.kind, self.codec = info.split, kind, codec
        self._sequence, self._session = OuterSequence, CoreOuterSession

    async def open(
        self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> CoreOuterSession:
        session = await super().open(prompt, sampling, log)
        assert isinstance(session, CoreOuterSession)
        return session


class CoreOuterSession(CoreSession):
    """See `engine.split.base.OuterSession`."""

    _engine: CoreOuterEngine
    _core: OuterCore
    _sequence: OuterSequence

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kind = self._engine.kind
        self._operations = ("shallow", "propose", "branch", "judge", "rewind", "skip", "extend")

    async def shallow(self, count: int) -> Shallow:
        s = self._sequence

        def run(deliver: Receive) -> None:
            task = ShallowTask(s.sent + max(count, 0), lambda: deliver(self._send(task.end)))
            self._core.shallow(s, task)

        position, rows = await self._operation("shallow", run)
        return Shallow(position, self._packed(rows))

    async def propose(self, longest: int, go_on: GoOn = always) -> Proposal:
        s = self._sequence

        def run(deliver: Receive) -> None:
            def done() -> None:
                deliver((*self._send(len(s.tokens)), s.tokens[s.confirmed :], list(s.choices)))

            self._core.drop(s)
            self._core.draft(s, RoundTask(max(longest, 0), go_on, True, done))

        position, rows, ids, choices = await self._operation("propose", run)
        return Proposal(
            position=position,
            hidden=self._packed(rows),
            ids=ids,
            probabilities=[choice.probability for choice in choices],
            alternatives=choices[-1].alternatives[:ALTERNATIVES] if choices else [],
        )

    async def branch(self, alternatives: int, steps: int) -> int:
        numbers = [self._engine.number() for _ in range(alternatives)]

        def run(deliver: Receive) -> None:
            task = RoundTask(steps, always, False, lambda: None)
            deliver(self._core.branch(self._sequence, numbers, task))

        count: int = await self._operation("branch", run)
        return count

    async def judge(self, deep: Tensor) -> Judgement:
        s = self._sequence

        def run(deliver: Receive) -> None:
            rows = self._engine.codec.unpack(deep, self._engine.split.hidden)
            deliver(self._core.judge(s, rows))

        judgement: Judgement = await self._operation("judge", run)
        return judgement

    async def rewind(self, position: int) -> None:
        s = self._sequence

        def run(deliver: Receive) -> None:
            if not 0 <= position <= s.sent:
                raise InvalidRequest(f"position {position} is beyond the {s.sent} that were sent")
            s.sent = position
            deliver(None)

        await self._operation("rewind", run)

    async def skip(self, position: int) -> None:
        s = self._sequence

        def run(deliver: Receive) -> None:
            if not s.sent <= position < s.confirmed:
                raise InvalidRequest(
                    f"position {position} is not between {s.sent} and the last confirmed token"
                )
            s.sent = position
            deliver(None)

        await self._operation("skip", run)

    async def _operation(self, name: str, run: Run) -> Any:
        self._begin(name)
        try:
            return await self._ask(run)
        finally:
            self._finish()

    def _packed(self, rows: np.ndarray) -> Tensor:
        return self._engine.codec.pack(rows, self.kind)

    def _send(self, end: int) -> tuple[int, np.ndarray]:
        """Return (position, states) of those of the first `end` positions that the middle has not seen, and count them
        as sent."""
        s = self._sequence
        position, rows = s.sent, s.shallow.between(s.sent, end)
        s.sent += len(rows)
        return position, rows
