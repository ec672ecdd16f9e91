"""The engine without its thread: sessions, admission, and one batched step at a time.

A step: the batching policy grants positions, the cache gives them room, one forward pass computes them,
and each session whose window was completed gets its outcome. Everything here runs on one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.base import (
    Draft,
    EngineStats,
    InvalidRequest,
    TokenLogprob,
    Tokens,
    UnknownSession,
    Verdict,
)
from engine.batch import Piece
from engine.chance import Purpose, uniforms
from engine.hosttier import HostTier, TierSettings
from engine.kvcache import BlockPool
from engine.memory import Memory
from engine.model import KVPool, Model
from engine.sampling import distributions, draw, logprobs, pack, penalise, sparse
from engine.schedule import Schedule
from engine.sequence import Generate, Propose, Sequence, Task, Verify
from engine.verification import Window, verify
from policies.batching import BatchingPolicy, Demand
from policies.pace import Pace
from policies.scheduling import SchedulingPolicy


class Core:
    """Sessions over one model.

    num_blocks, block_size: the KV cache, in blocks of tokens.
    token_budget: positions computed in one step at most.
    max_sessions: sessions that hold KV blocks at once; further ones wait.
    scheduling: who runs while not all can; None: first come, first served. max_running: sessions that it lets
    run at once. tier: host memory beside the KV cache. clock: seconds.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int,
        batching: BatchingPolicy,
        token_budget: int,
        max_sessions: int = 256,
        *,
        scheduling: SchedulingPolicy | None = None,
        max_running: int | None = None,
        tier: TierSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.batching, self.token_budget = model, batching, token_budget
        self.kv = KVPool(model.config, num_blocks, block_size, model.device, model.dtype)
        self.stats = EngineStats(blocks_total=num_blocks)
        pool = BlockPool(num_blocks, block_size, self.kv.copy_block)
        self.pace, self.clock = Pace(), clock
        host = HostTier(self.kv, tier, clock) if tier is not None and tier.blocks else None
        self.memory = Memory(pool, max_sessions, self.stats, self.pace, host)
        self.schedule: Schedule | None = None
        if scheduling is not None:
            self.schedule = Schedule(
                scheduling, self.memory, self.pace, self.stats, max_running or max_sessions, clock
            )
        self._arrivals = 0
        self._ended_s: float | None = None  # the last step, if the next one follows at once

    # -- sessions ---------------------------------------------------------------------------------

    def open(self, sequence: Sequence) -> None:
        sequence.opened_s = self.clock()
        self.memory.add(sequence)
        self.stats.opened += 1
        self._changed()

    def assign(self, session: int, task: Task) -> None:
        """Give the session its next task; raises UnknownSession. A finished output ends it at once."""
        s = self._get(session)
        if s.confirmed < len(s.tokens):  # proposals that nobody confirmed are no output
            self.extend(session, s.confirmed - s.prompt_len, [])
        if s.finish is not None and isinstance(task, Generate):
            task.deliver(Tokens([], s.finish))
            return
        if s.finish is not None and isinstance(task, Verify):
            task.deliver(Verdict(0, [], s.finish))
            return
        room = s.sampling.max_tokens - s.output_len
        if isinstance(task, Verify) and len(task.drafts) >= room:
            # the target's own token needs a place: drafts beyond it could not stand
            task = task.cut(room - 1)
        if isinstance(task, Propose) and (task.window < 1 or s.finish is not None):
            task.deliver(Draft([]))
            return
        self._arrivals += 1
        s.task, s.arrival = task, self._arrivals
        self._changed()

    def extend(self, session: int, position: int, tokens: list[int]) -> None:
        """Set the output from `position` on; the cache keeps the common part.

        Raises UnknownSession; InvalidRequest for a position beyond the output or tokens beyond max_tokens.
        """
        s = self._get(session)
        if not 0 <= position <= s.output_len or position + len(tokens) > s.sampling.max_tokens:
            raise InvalidRequest(
                f"cannot set {len(tokens)} tokens at position {position}: the output has {s.output_len} "
                f"of at most {s.sampling.max_tokens}"
            )
        same = s.replace(position, tokens)
        self.memory.roll_back(s, min(same, len(s.tokens) - 1))

    def pause(self, session: int) -> None:
        """Take the running task away, if there is one; the session stays open."""
        if session in self.memory.sequences:
            self.memory.sequences[session].task = None
            self._changed()

    def cancel(self, session: int) -> None:
        """End the session and free its blocks; unknown ones are ignored."""
        s = self.memory.remove(session)
        if s is None:
            return
        self._changed()
        if s.finish is None:
            self.stats.cancelled += 1
        else:
            self.stats.finished += 1

    def _changed(self) -> None:
        if self.schedule is not None:
            self.schedule.changed()

    def _get(self, session: int) -> Sequence:
        try:
            s = self.memory.sequences[session]
        except KeyError:
            raise UnknownSession(f"no session {session} is open") from None
        if s.task is not None:
            raise InvalidRequest(f"session {session} is still at work on its last operation")
        return s

    # -- the step ---------------------------------------------------------------------------------

    def step(self) -> bool:
        """Compute one batch; False if there was nothing to do before `idle_s` are over.

        What lies between two steps that follow each other counts to the second: delivery, commands, and the wait
        for the interpreter while the event loop has it.
        """
        begin, self._ended_s = self._ended_s or time.perf_counter(), None
        if self.schedule is not None:
            self.schedule.decide()
        self.memory.admit()
        ready = self.memory.ready
        if not ready:
            return False
        now = self.clock()
        demands = [Demand(s.pending, s.window, s.arrival, s.computed, self._slack(s, now)) for s in ready]
        grants = self.batching.form(demands, self.token_budget)
        chosen = self.memory.make_room([(s, g) for s, g in zip(ready, grants, strict=True) if g])
        if not chosen:  # all gave way to sessions that were granted nothing: they go first next time
            return self.memory.copying_s is None
        # alike pieces side by side; the logits of proposals drawn by chance come last
        chosen.sort(key=lambda item: (_proposes_by_chance(item[0]), item[1], item[0].computed))
        pieces = [
            Piece(s.upcoming(g), s.computed, s.table.blocks, s.window if g == s.pending else 0)
            for s, g in chosen
        ]
        with torch.inference_mode():
            logits = self.model.forward(self.model.batch(pieces, self.kv), self.kv)
            self._conclude(chosen, logits)
        self._ended_s = time.perf_counter()
        seconds = self._ended_s - begin
        self.stats.steps += 1
        self.stats.step_s += seconds
        self.pace.note(sum(grant for _, grant in chosen), seconds)
        self.memory.write_through(seconds)
        return True

    def _slack(self, s: Sequence, now: float) -> int:
        """Positions that a step may have if it shall end before the session's reader runs dry."""
        return max(0, int((s.reader.dry_s(now) - self.pace.base_s) / self.pace.token_s))

    @property
    def idle_s(self) -> float | None:
        """After a step that found nothing to do: when to try again, in seconds; None: when something is asked."""
        waits = [self.memory.copying_s, None if self.schedule is None else self.schedule.due_s]
        return min((s for s in waits if s is not None), default=None)

    def _conclude(self, chosen: list[tuple[Sequence, int]], logits: torch.Tensor) -> None:
        """Advance every session by its grant, and give those whose window is complete their outcome."""
        decided: list[Sequence] = []
        drawn: list[Sequence] = []
        for s, grant in chosen:
            complete = grant == s.pending and s.task is not None
            self.stats.tokens_prefilled += grant - s.window if complete else grant
            if complete:
                (drawn if _proposes_by_chance(s) else decided).append(s)
                s.fresh = False
            s.computed += grant
        rows = sum(s.window for s in decided)
        if decided:
            self._decide(decided, logits[:rows])
        if drawn:
            self._draft(drawn, logits[rows:])
        for s, _ in chosen:
            self.memory.pool.register(s.table, s.tokens, min(s.computed, s.confirmed))

    def _decide(self, sequences: list[Sequence], raw: torch.Tensor) -> None:
        """Verification windows; plain decode and a greedy proposal are windows without drafts."""
        windows = [_window(s) for s in sequences]
        logits = raw
        if any(w.sampling.penalised for w in windows):
            rows = [(s, w, j) for s, w in zip(sequences, windows, strict=True) for j in range(s.window)]
            logits = penalise(
                raw,
                [w.sampling for _, w, _ in rows],
                lambda i: (rows[i][0].prompt, rows[i][0].output + rows[i][1].drafts[: rows[i][2]]),
            )
        outcomes = verify(logits, windows)
        row = 0
        for s, window, (accepted, own) in zip(sequences, windows, outcomes, strict=True):
            ids = [*window.drafts[:accepted], own]
            scores = None
            if window.sampling.logprobs >= 0:
                scores = logprobs(raw[row : row + len(ids)], ids, window.sampling.logprobs)
            row += len(window.drafts) + 1
            if isinstance(s.task, Propose):
                self._propose(s, own, None)
            else:
                self._emit(s, accepted, ids, scores)

    def _draft(self, sequences: list[Sequence], raw: torch.Tensor) -> None:
        """Proposals drawn by chance, each with the distribution it was drawn from."""
        settings = [s.sampling for s in sequences]
        logits = penalise(raw, settings, lambda i: (sequences[i].prompt, sequences[i].output))
        q_ids, q_probs = sparse(distributions(logits, settings))
        chance = uniforms([s.seed for s in settings], [s.output_len for s in sequences], Purpose.DRAFT)
        drawn = q_ids.gather(1, draw(q_probs, chance)[:, None]).squeeze(1).tolist()
        for s, token, *q in zip(sequences, drawn, q_ids, q_probs, strict=True):
            self._propose(s, token, (q[0], q[1]))

    def _emit(self, s: Sequence, accepted: int, ids: list[int], scores: list[TokenLogprob] | None) -> None:
        before = len(s.tokens)
        for count, token in enumerate(ids, 1):
            if s.append(token):
                ids = ids[:count]
                break
        s.confirmed = len(s.tokens)
        s.reader.deliver(len(ids), self.clock())
        if s.finish is not None and self.schedule is not None:
            self.schedule.ended(s.output_len)
        accepted = min(accepted, len(ids))
        task, s.task = s.task, None
        self.stats.tokens_generated += len(ids)
        scores = scores and scores[: len(ids)]
        if isinstance(task, Verify):
            self.stats.tokens_verified += len(task.drafts)
            self.stats.tokens_accepted += accepted
            if task.drafts:  # keys and values beyond the accepted drafts are void
                self.memory.roll_back(s, min(before + accepted, len(s.tokens) - 1))
            task.deliver(Verdict(accepted, ids, s.finish, scores))
        elif isinstance(task, Generate):
            if s.finish is None:  # the next token is new work: it stands behind work that waits already
                self._arrivals += 1
                s.task, s.arrival = task, self._arrivals
            task.deliver(Tokens(ids, s.finish, scores))

    def _propose(self, s: Sequence, token: int, q: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        task = s.task
        assert isinstance(task, Propose)
        s.tokens.append(token)
        task.ids.append(token)
        if q is not None:
            task.q_ids.append(q[0])
            task.q_probs.append(q[1])
        if len(task.ids) < task.window and not s.ends_draft(token):
            return
        s.task = None
        self.stats.tokens_drafted += len(task.ids)
        probs = pack(torch.stack(task.q_ids), torch.stack(task.q_probs)) if task.q_ids else None
        task.deliver(Draft(task.ids, probs))


def _proposes_by_chance(s: Sequence) -> bool:
    return isinstance(s.task, Propose) and not s.sampling.greedy


def _window(s: Sequence) -> Window:
    if isinstance(s.task, Verify):
        return Window(s.task.drafts, s.output_len, s.sampling, s.task.q_ids, s.task.q_probs)
    return Window([], s.output_len, s.sampling)
