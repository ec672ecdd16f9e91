"""The core of an engine: sessions, admission, and one batched step at a time.

A step: the batching policy grants positions, the cache makes room for them, the runner computes them, and each session
whose window is complete gets its outcome. All of it runs on one thread, or on a loop in virtual time.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.engine.base import DraftProbs, Drafts, EngineStats, InvalidRequest, Tokens, Verdict
from tandem.engine.config import EngineConfig
from tandem.engine.core.host_memory import HostTier
from tandem.engine.core.kvcache import BlockPool
from tandem.engine.core.memory import Memory
from tandem.engine.core.runner import Outcome, Runner, Work
from tandem.engine.core.sequence import Sequence
from tandem.engine.core.tasks import Computed, DraftTask, ForwardTask, GenerateTask, Task, VerifyTask
from tandem.engine.distribution import TOKENS
from tandem.engine.sessions.session import BUSY
from tandem.policies.estimators.overdue import StepLimit
from tandem.policies.estimators.step_time import SmallSteps, StepTimeModel
from tandem.policies.scheduling.base import SchedulingPolicy
from tandem.policies.scheduling.batching import BatchingPolicy, Demand
from tandem.policies.scheduling.control import SchedulingControl
from tandem.policies.scheduling.outstanding import outstanding
from tandem.policies.speculation.lookup import LookupHistory, PromptLookup, agreement

GRACE_S = 0.002
"""Seconds that the engine waits for a session's first task, which usually follows at once: one step then covers prompt
and first token, and none runs before the scheduling policy has seen the session."""


class Core:
    """Sessions over one runner.

    clock: returns seconds.
    step_time: model of step times, learnt while the core runs.
    stats: counters.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        *,
        batching_policy: BatchingPolicy | None = None,
        scheduling_policy: SchedulingPolicy | None = None,
    ) -> None:
        """batching_policy, scheduling_policy: used in place of the configured ones."""
        self.runner, self.config, self.clock = runner, config, clock
        self.step_time = StepTimeModel()
        self.stats = EngineStats(blocks_total=config.kv_blocks)
        self._batching = batching_policy or config.batching.create()
        host = config.host_memory
        tier = None if host is None else HostTier(host, runner.host_copies(host, clock))
        pool = BlockPool(
            config.kv_blocks, config.block_size, runner.copy_block, runner.free_block, config.max_cached
        )
        self.memory = Memory(pool, config.max_sessions, self.stats, self.step_time, tier)
        if scheduling_policy is None and config.scheduling is not None:
            scheduling_policy = config.scheduling.create()
        self._control: SchedulingControl | None = None
        if scheduling_policy is not None:
            most = config.max_running or config.max_sessions
            self._control = SchedulingControl(scheduling_policy, self.memory, self.step_time, most)
        self._arrivals = 0
        self._began_s = 0.0
        self._history = LookupHistory()
        self._small_steps = SmallSteps(self.step_time)
        self._others = (
            0,
            0,
        )  # sessions in the last step beside the last one that took part, and their positions
        self._step_limit = StepLimit()
        self._due_s: float | None = None  # when the step that is under way ends at the latest, on the clock
        self._batch = 0, 0.0  # positions of this step, and seconds until it was computed
        self._grace_s: float | None = None  # how much longer it waits, see GRACE_S
        self._ended_s: float | None = None  # end of the last step, if the next one follows at once

    def gauges(self) -> EngineStats:
        """Return counters, and gauges of memory and work. May be called from another thread."""
        stats, memory = copy.copy(self.stats), self.memory
        stats.waiting, stats.blocks_free = len(memory.waiting), memory.pool.available
        stats.block_size = memory.block_size
        stats.base_s, stats.token_s = self.step_time.base_s, self.step_time.token_s
        stats.overdue_s = self.overdue_s
        stats.outstanding = outstanding(
            list(memory.sequences.values()), self.clock(), self.step_time.step_s(1)
        )
        return stats

    @property
    def overdue_s(self) -> float:
        """Seconds by which the step under way takes longer than any should; also from another thread."""
        due_s = self._due_s
        return 0.0 if due_s is None else max(0.0, self.clock() - due_s)

    # -- sessions ---------------------------------------------------------------------------------------

    def open(self, s: Sequence) -> None:
        """Add a session."""
        s.opened_s = self.clock() - s.sampling.waited_s
        if self.config.lookup:
            s.lookup = PromptLookup(self._history)
        self.memory.add(s)
        self.stats.opened += 1
        self._changed()

    def assign(self, s: Sequence, task: Task) -> None:
        """Give the session its next task; a finished output ends it at once. Raise InvalidRequest while another task
        runs."""
        self._check_idle(s)
        if s.confirmed < len(s.tokens):  # unconfirmed proposals are no output
            self.extend(s, s.confirmed - s.prompt_len, [])
        if isinstance(task, ForwardTask):
            if not task.window and s.goal <= s.computed:  # only a rollback
                task.deliver(Computed(np.empty((0, 0), np.float32)))
                return
        elif isinstance(task, DraftTask):
            if task.length < 1 or s.finish is not None:
                task.deliver(Drafts([]))
                return
        elif s.finish is not None:
            if isinstance(task, VerifyTask):
                task.deliver(Verdict(0, [], s.finish))
            elif isinstance(task, GenerateTask):
                task.deliver(Tokens([], s.finish))
            return
        elif isinstance(task, VerifyTask) and task.drafts:
            room = s.sampling.max_tokens - s.output_len
            if len(task.drafts) >= room:  # the target's own token takes the last place
                task = task.cut(room - 1)
        s.absence.end(self.clock())
        self._begin(s, task)
        self._changed()

    def _begin(self, s: Sequence, task: Task) -> None:
        if s.lookup is not None and not s.sampling.forced:
            self._look_up(s, s.lookup, task)
        self._arrivals += 1
        s.begin(task, self._arrivals)
        self.memory.wake(s)

    def _look_up(self, s: Sequence, lookup: PromptLookup, task: Task) -> None:
        """Add drafts from the session's own text that are worth the time of verifying them."""
        most = min(self.config.lookup, s.sampling.max_tokens - s.output_len - 1)
        others, positions = self._others

        def step_s(own: int) -> float:
            return self._small_steps.step_s(positions + own)

        if isinstance(task, GenerateTask):
            task.drafts = lookup.draft(s.tokens, most, others, step_s)
        elif isinstance(task, VerifyTask):
            task.mix(lookup.mix(s.tokens, task.drafts, task.q_ids is not None, most, others, step_s))

    def extend(self, s: Sequence, position: int, tokens: list[int] | np.ndarray) -> None:
        """Set the output from `position` on; the cache keeps the common part.

        tokens: ids; hidden states [positions, hidden] for a forward session.

        Raise InvalidRequest for a position beyond the output, for tokens beyond max_tokens, or while a task runs.
        """
        self._check_idle(s)
        s.check_place(position, len(tokens))
        same = s.replace(position, tokens)
        self.memory.roll_back(s, min(same, s.goal))

    def pause(self, s: Sequence) -> None:
        """Take the running task away, if there is one; the session stays open."""
        if s.number in self.memory.sequences:
            s.end()
            self._changed()

    def cancel(self, s: Sequence) -> None:
        """End the session and free its blocks. Do nothing if it has ended."""
        if s.number not in self.memory.sequences:
            return
        self.memory.remove(s)
        s.end()
        self._changed()
        if s.finish is None:
            self.stats.cancelled += 1
        else:
            self.stats.finished += 1

    def not_begun(self) -> list[Sequence]:
        """Return the waiting sessions for which nothing was computed, the oldest first."""
        return [s for s in self.memory.waiting if not s.stay.begun]

    def close(self) -> None:
        """End every session's task, which holds its client. No step follows."""
        for s in self.memory.sequences.values():
            s.end()

    def _changed(self) -> None:
        if self._control is not None:
            self._control.changed()

    @staticmethod
    def _check_idle(s: Sequence) -> None:
        if s.task is not None:
            raise InvalidRequest(BUSY)

    # -- the step ---------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Form, compute and conclude a step. Return False if there is nothing to do for `idle_s`."""
        work = self.form()
        if work:
            self.conclude(work, self.runner.run(work, self.completed(work)))
        return work is not None

    def form(self) -> Work | None:
        """Return the work of the next step; None if there is nothing to do for `idle_s`.

        Empty work means that all were preempted for sessions that were granted nothing; call it again. The time between
        two steps that follow each other counts to the second one: delivery, commands, and the wait for the interpreter
        while the event loop holds it.
        """
        now = self.clock()
        self._began_s, self._ended_s = now if self._ended_s is None else self._ended_s, None
        if self._control is not None:
            self._decide(now)
        memory = self.memory
        if memory.waiting or memory.busy:
            memory.admit(now)
        ready = self._begun(memory.ready, now)
        if not ready:
            return None
        if self._batching.needs_slack:
            demands = [Demand(s.pending, s.window, s.arrival, s.computed, self._slack(s, now)) for s in ready]
        else:
            demands = [Demand(s.goal - s.computed, s.window, s.arrival, s.computed) for s in ready]
        grants = self._batching.form(demands, self.config.token_budget)
        work = memory.make_room([(s, g) for s, g in zip(ready, grants, strict=True) if g], now)
        if work:
            positions = sum(grant for _, grant in work)
            self._due_s = now + self._step_limit.limit_s(self.step_time.step_s(positions))
        return work if work or memory.copying_s is None else None

    def _begun(self, ready: list[Sequence], now: float) -> list[Sequence]:
        """Return the sessions whose first task has come, or has not come within GRACE_S."""
        since = now - GRACE_S
        begun = [s for s in ready if s.task is not None or s.opened_s <= since]
        self._grace_s = None
        if len(begun) < len(ready):
            self._grace_s = min(s.opened_s for s in ready if s.task is None and s.opened_s > since) - since
        return begun

    def completed(self, work: Work) -> list[Sequence]:
        """The sessions of a step that complete their task's window."""
        return [s for s, grant in work if s.task is not None and s.computed + grant == s.goal]

    def conclude(self, work: Work, outcomes: list[Outcome]) -> None:
        """Advance every session by its grant; deliver the outcomes of those whose window is complete, in their
        order."""
        stats, register, size = self.stats, self.memory.pool.register, self.memory.block_size
        positions, i, now = sum(grant for _, grant in work), 0, self.clock()
        self._batch = positions, now - self._began_s
        stats.served.step_tokens.add(positions, TOKENS)
        for s, grant in work:
            s.stay.begin(s.opened_s, self._began_s, stats.served)
            complete = s.task is not None and s.computed + grant == s.goal
            stats.tokens_prefilled += grant - s.window if complete else grant
            s.computed += grant
            if complete:
                s.fresh = False
                self._others = len(work) - 1, positions - grant
                self._take(s, outcomes[i], now)
                i += 1
            if (s.table.shared + 1) * size <= s.computed:
                register(s.table, s.tokens, min(s.computed, s.confirmed))
        self._ended_s, self._due_s = self.clock(), None
        seconds = self._ended_s - self._began_s
        self._step_limit.note(seconds)
        stats.steps += 1
        stats.step_s += seconds
        self.step_time.note(positions, seconds)
        self._small_steps.note(positions, seconds)
        self.memory.write_through(seconds, self._ended_s)

    @property
    def idle_s(self) -> float | None:
        """Seconds until a step is worth trying again after one that found nothing to do; None for the next command."""
        now_s = self.clock()
        waits = [self.memory.copying_s, self._grace_s, self.memory.expected_s(now_s)]
        if self._control is not None:
            waits.append(self._control.due_s(list(self.memory.sequences.values()), now_s))
        return min((s for s in waits if s is not None), default=None)

    def _decide(self, now: float) -> None:
        control = self._control
        assert control is not None
        begin = time.thread_time()  # of this thread alone
        control.decide(list(self.memory.sequences.values()), now)
        if control.decisions != self.stats.decisions:
            self.stats.decisions = control.decisions
            self.stats.decision_s += time.thread_time() - begin

    def _slack(self, s: Sequence, now: float) -> int:
        """Return the positions that a step may have to end before the session's reader runs dry."""
        step_time = self.step_time
        return max(0, int((s.reader.dry_s(now) - step_time.base_s) / step_time.token_s))

    # -- outcomes ---------------------------------------------------------------------------------------

    def _take(self, s: Sequence, outcome: Outcome, now: float) -> None:
        task = s.task
        if isinstance(task, DraftTask):
            self._propose(s, task, outcome, now)
            return
        if isinstance(task, ForwardTask):
            self.stats.tokens_prefilled += task.window  # they have no logits either
            s.end()
            s.absence.begin(now)
            assert outcome.hidden is not None
            task.deliver(Computed(outcome.hidden, *self._batch))
            return
        assert isinstance(task, GenerateTask | VerifyTask)
        if s.matcher is not None and s.matcher.failure is not None:
            deliver: Callable[[Any], None] = task.deliver
            s.end()
            self.memory.roll_back(s, len(s.tokens) - 1)  # its last token's logits are needed again
            deliver(InvalidRequest(s.matcher.failure))
            return
        before, drafts = len(s.tokens), task.drafts
        accepted, token = outcome.accepted, outcome.token
        ids = [*drafts[:accepted], token]
        del ids[s.append(ids) :]
        s.confirmed = len(s.tokens)
        s.reader.deliver(len(ids), now)
        served = self.stats.served
        if before == s.prompt_len:
            s.stay.prefilled(now, s.prompt_len, served)
        if s.finish is not None:
            s.stay.end(now, served)
            if self._control is not None:
                self._control.ended(s.output_len)
        accepted = min(accepted, len(ids))
        scores = outcome.scores and outcome.scores[: len(ids)]
        stats = self.stats
        stats.tokens_generated += len(ids)
        s.end()
        if drafts:  # keys and values beyond the accepted drafts are void
            self.memory.roll_back(s, min(before + accepted, len(s.tokens) - 1))
        if isinstance(task, VerifyTask):
            given, kept = task.given, agreement(task.given, drafts)
            stand = min(accepted, kept) if kept == len(given) else agreement(given, ids)
            if s.lookup is not None:
                s.lookup.judge(len(given), stand)
            stats.tokens_verified += len(given)
            stats.tokens_accepted += stand
            stats.tokens_looked_up += len(drafts) - kept
            stats.tokens_found += max(0, accepted - kept)
            if s.finish is None:
                s.absence.begin(now)
            task.deliver(Verdict(stand, ids, s.finish, scores))
        else:
            stats.tokens_looked_up += len(drafts)
            stats.tokens_found += accepted
            if s.finish is None:  # the next token is new work, behind work that already waits
                self._begin(s, task)
            task.deliver(Tokens(ids, s.finish, scores))

    def _propose(self, s: Sequence, task: DraftTask, outcome: Outcome, now: float) -> None:
        s.tokens.append(outcome.token)
        task.ids.append(outcome.token)
        if outcome.q is not None:
            task.q.append(outcome.q)
        if len(task.ids) < task.length and not s.ends_draft(outcome.token):
            s.goal += 1
            self.memory.wake(s)
            return
        s.end()
        s.absence.begin(now)
        self.stats.tokens_drafted += len(task.ids)
        q = DraftProbs.of(*(np.stack(rows) for rows in zip(*task.q, strict=True))) if task.q else None
        task.deliver(Drafts(task.ids, q))
