"""Subclass of vLLM's scheduler, in which sessions wait for their clients and reading decides which run.

A session is one request of vLLM's. It runs until it has the output tokens that its client has asked for, and is then
**parked**: it keeps its KV cache, takes part in no step, and is preempted first when memory is short. A client that
verifies asks for one more token and sends drafts along, which replace vLLM's own proposals. While not all sessions
with work can run, the torch engine's SchedulingControl decides which do. Where `lookup` is set, a session's own text
gives drafts, too (`policies.speculation.lookup`).

vLLM imports this module in its scheduler's process: the change to vLLM's EngineCore at the end receives the asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from tandem.engine.base import DraftProbs, Drafts, EngineStats
from tandem.engine.config import SchedulingChoice
from tandem.engine.distribution import TOKENS
from tandem.engine.vllm.grammar import GrammarMasks
from tandem.engine.vllm.offload import host_tier
from tandem.engine.vllm.views import DRAWN, REPLAYED, Ask, Label, RequestView, VllmMemory
from tandem.policies.estimators.step_time import SmallSteps, StepTimeModel
from tandem.policies.scheduling.control import SchedulingControl
from tandem.policies.scheduling.outstanding import outstanding
from tandem.policies.speculation.lookup import LookupHistory, PromptLookup, agreement

POLL_S = 1e-3
"""Seconds that vLLM waits after a step in which no session with work could run."""


class TandemScheduler(Scheduler):
    """additional_config of vLLM's: `scheduling` (a SchedulingChoice or None), `max_running` and `lookup`.

    clock: seconds; a simulation has another one.
    """

    running: list[Request]

    def __init__(self, *args: Any, clock: Callable[[], float] = time.monotonic, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clock = clock
        given = self.vllm_config.additional_config
        self._views: dict[str, RequestView] = {}
        self._stats = EngineStats(
            blocks_total=self.kv_cache_manager.block_pool.num_gpu_blocks - 1, block_size=self.block_size
        )
        self._step_time = StepTimeModel()
        self._small_steps = SmallSteps(self._step_time)
        self._most_lookups: int = given.get("lookup") or 0
        self._history = LookupHistory()
        self._placed: dict[str, Drafts] = {}  # clients' drafts, where a step has no proposals of vLLM's
        self._last: dict[str, int] = {}  # positions of each request in the last step
        self._began_s = 0.0
        self._ended_s: float | None = None  # when the last step did, where nothing came between
        self._tier = host_tier(self.connector, self.vllm_config, self.kv_cache_config, self._stats)
        self._memory = VllmMemory(
            self.kv_cache_manager, self.block_size, self.max_num_running_reqs, self._tier
        )
        folder, vocab_size = (
            self.vllm_config.model_config.tokenizer,
            self.vllm_config.model_config.get_vocab_size(),
        )
        self._masks = GrammarMasks(folder, vocab_size, self.grammar_compile_error_reqs.add)
        self.structured_output_manager = self._masks
        self._control: SchedulingControl | None = None
        if given.get("scheduling") is not None:
            policy = SchedulingChoice.model_validate(given["scheduling"]).create()
            most = given.get("max_running") or self.max_num_running_reqs
            self._control = SchedulingControl(policy, self._memory, self._step_time, most)

    # -- what clients ask -------------------------------------------------------------------------------

    def ask(self, asks: Iterable[Ask]) -> None:
        """Take in the operations of sessions; ended ones are ignored."""
        for request_id, until, position, drafts, probs in asks:
            view = self._views.get(request_id)
            if view is None:
                continue
            view.until = until
            if view.made == position:  # else it has gone on, and they follow something else
                drawn = None if probs is None else msgspec.convert(probs, DraftProbs)
                view.drafts = Drafts(list(drafts), drawn)
            self._changed()

    def stats(self) -> EngineStats:
        """Gauges, and counters of memory, steps and vLLM's own proposals."""
        stats = self._stats
        stats.waiting = sum(not view.admitted for view in self._views.values())
        stats.blocks_free = self._memory.free_blocks
        stats.base_s, stats.token_s = self._step_time.base_s, self._step_time.token_s
        stats.outstanding = outstanding(self._views.values(), self.clock(), self._step_time.step_s(1))
        return stats

    def add_request(self, request: Request) -> None:
        extra = request.sampling_params.extra_args
        _replay(request, extra.get(REPLAYED, ()))
        label = Label(*extra["tandem"])
        lookup = PromptLookup(self._history) if self._most_lookups else None
        self._views[request.request_id] = RequestView(request, label, self._memory, self.clock(), lookup)
        self._masks.begin(request, label.before)
        super().add_request(request)
        self._changed()

    def _free_request(self, request: Request, *args: Any, **options: Any) -> Any:
        view = self._views.pop(request.request_id)
        self._masks.end(request.request_id)
        if self._control is not None and request.status != RequestStatus.FINISHED_ABORTED:
            self._control.ended(view.received)
        self._changed()
        return super()._free_request(request, *args, **options)

    def has_unfinished_requests(self) -> bool:
        """vLLM sleeps while all are parked, unless it has something else to do (`has_requests`)."""
        wanting = any(view.wanting for view in self._views.values())
        if not wanting:
            self._ended_s = None
        return wanting

    @property
    def idle_s(self) -> float | None:
        """Return the seconds until a step that found nothing to do is tried again; None: until something is asked."""
        views = list(self._views.values())
        if any(view.runs for view in views):
            return POLL_S
        return None if self._control is None else self._control.due_s(views, self.clock())

    def _changed(self) -> None:
        if self._control is not None:
            self._control.changed()

    # -- the step ---------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now = self.clock()
        self._began_s, self._ended_s = now if self._ended_s is None else self._ended_s, None
        self._decide(now)
        views = self._views
        running = sorted((views[request.request_id] for request in self.running), key=_rank)
        self._preempt([view for view in running if view.paused], now)
        ready = [view for view in running if view.runs]
        ready, late = ready[: self.max_num_running_reqs], ready[self.max_num_running_reqs :]
        parked = sorted((view for view in running if not view.wanting), key=_parked_s)
        resting = [
            *parked,
            *reversed(late),
        ]  # parked ones take no place: more may have been asked on than there are
        waiting = sorted((views[r.request_id] for r in (*self.kv_holding_waiting, *self.waiting)), key=_rank)
        if self.num_spec_tokens:
            self._place_drafts(ready)
        evicted = self._make_room(ready, waiting, resting, now)
        queue = sorted((*waiting, *resting[:evicted]), key=_rank)
        self._queue(view.request for view in queue if view.runs)
        self.running = [view.request for view in ready]
        try:
            output = super().schedule(throttle_prefills)
            self._note_scheduled(output)
            setattr(output, DRAWN, {name: drafts.probs for name, drafts in self._placed.items()})
            return output
        finally:
            self.running += [view.request for view in resting[evicted:]]
            aside = dict.fromkeys(view for view in (*waiting, *running) if not view.running and not view.runs)
            for view in aside:
                self._enqueue_waiting_request(view.request)

    def _note_scheduled(self, output: SchedulerOutput) -> None:
        """Count the sessions and copies that begin in this step, and what the prefix cache has of the sessions."""
        if self._tier is not None:
            self._tier.begun(output.kv_connector_metadata)
        for new in output.scheduled_new_reqs:
            view = self._views[new.req_id]
            if not view.stay.begun:
                self._stats.tokens_queried += view.request.num_tokens
                self._stats.tokens_from_prefix += new.num_computed_tokens
                view.stay.found = new.num_computed_tokens
            view.stay.begin(view.opened_s, self._began_s, self._stats.served)

    def _decide(self, now: float) -> None:
        control = self._control
        if control is None:
            return
        begin = time.thread_time()
        views = list(self._views.values())
        control.decide(views, now)
        if control.decisions != self._stats.decisions:
            self._stats.decisions = control.decisions
            self._stats.decision_s += time.thread_time() - begin

    def _place_drafts(self, ready: Iterable[RequestView]) -> None:
        """Clients' drafts and looked up ones take the place of what vLLM proposes itself. The target's own token needs
        one, too."""
        self._placed.clear()
        for view in ready:
            request, given, view.drafts = view.request, view.drafts, Drafts([])
            room = min(
                self.max_model_len - request.num_tokens, request.max_tokens - request.num_output_tokens
            )
            given = given.first(max(0, min(room - 1, self.num_spec_tokens)))
            drafts = given.ids if view.lookup is None else self._look_up(view, view.lookup, given, room - 1)
            if drafts:
                self._placed[request.request_id], request.spec_token_ids = given, drafts

    def _look_up(self, view: RequestView, lookup: PromptLookup, given: Drafts, room: int) -> list[int]:
        """Return the drafts that are worth verifying: a client's, and such from the session's own text."""
        request, last = view.request, self._last
        if request.num_computed_tokens < request.num_tokens - 1:  # not yet decoding
            return given.ids
        own = last.get(request.request_id, 0)
        others, positions = len(last) - (own > 0), sum(last.values()) - own
        return lookup.mix(
            request.all_token_ids,
            given.ids,
            given.probs is not None,
            min(self._most_lookups, room),
            others,
            lambda count: self._small_steps.step_s(positions + count),
        )

    def _make_room(
        self, ready: list[RequestView], waiting: list[RequestView], resting: list[RequestView], now: float
    ) -> int:
        """Preempt sessions outside the step for those in it, the longest parked first; return how many."""
        blocks = self._memory.blocks
        needed = sum(1 + blocks(len(view.request.spec_token_ids)) for view in ready)
        if len(ready) < self.max_num_running_reqs and (first := next((v for v in waiting if v.runs), None)):
            needed += blocks(first.request.num_tokens) + 1
        evicted = 0
        while evicted < len(resting) and self._memory.free_blocks < needed:
            self._preempt(resting[evicted : evicted + 1], now)
            evicted += 1
        return evicted

    def _preempt(self, views: Iterable[RequestView], now: float) -> None:
        for view in views:
            self.running.remove(view.request)
            self._preempt_request(view.request, now)

    def _preempt_request(self, request: Request, *args: Any, **options: Any) -> None:
        view = self._views[request.request_id]
        view.fresh, view.drafts = True, Drafts([])
        view.stay.preempted += 1
        self._stats.preempted += 1
        super()._preempt_request(request, *args, **options)

    def _queue(self, requests: Iterable[Request]) -> None:
        """Replace the waiting requests, in this order; those that hold memory, where a connector loads it, wait apart
        and come in first."""
        self.waiting.clear()
        self.kv_holding_waiting.clear()
        for request in requests:
            self._enqueue_waiting_request(request)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        if not scheduler_output.has_structured_output_requests:
            return None
        scheduled = (self.requests.get(request_id) for request_id in scheduler_output.num_scheduled_tokens)
        going_on = [request for request in scheduled if request is not None]
        ids = [request.request_id for request in going_on if not request.is_prefill_chunk]
        return self._masks.output(self.requests, ids, scheduler_output.scheduled_spec_decode_tokens)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self._tier is not None and (copies := model_runner_output.kv_connector_output) is not None:
            self._tier.ended(copies)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        positions = scheduler_output.total_num_scheduled_tokens
        if positions:
            stats, self._ended_s = self._stats, self.clock()
            seconds = self._ended_s - self._began_s
            stats.steps += 1
            stats.step_s += seconds
            stats.served.step_tokens.add(positions, TOKENS)
            stats.tokens_prefilled += positions - _windows(scheduler_output, model_runner_output)
            if scheduler_output.scheduled_spec_decode_tokens:
                self._count_proposals(scheduler_output, model_runner_output)
            self._step_time.note(positions, seconds)
            self._small_steps.note(positions, seconds)
            self._last = scheduler_output.num_scheduled_tokens
        return outputs

    def _count_proposals(self, scheduled: SchedulerOutput, made: ModelRunnerOutput) -> None:
        """Count vLLM's own drafts, and looked up ones; a client's count where it asks."""
        stats, drafts = self._stats, scheduled.scheduled_spec_decode_tokens
        for request_id, ids in zip(made.req_ids, made.sampled_token_ids, strict=True):
            if not ids or not (proposed := drafts.get(request_id, ())):
                continue
            accepted, placed = len(ids) - 1, self._placed.get(request_id)
            if placed is None:
                stats.tokens_drafted += len(proposed)
                stats.tokens_verified += len(proposed)
                stats.tokens_accepted += accepted
                continue
            given = placed.ids
            kept = agreement(given, proposed)
            stats.tokens_looked_up += len(proposed) - kept
            stats.tokens_found += max(0, accepted - kept)
            view = self._views.get(request_id)
            if view is not None and view.lookup is not None:
                view.lookup.judge(
                    len(given), min(accepted, kept) if kept == len(given) else agreement(given, ids)
                )

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        ids, stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        view, now = self._views[request.request_id], self.clock()
        view.reader.deliver(len(ids), now)
        view.fresh = False
        if ids and view.received == len(ids):
            view.stay.prefilled(now, request.num_prompt_tokens, self._stats.served)
        if stopped:
            view.stay.end(now, self._stats.served)
        if not view.wanting:
            view.parked_s = now
            self._changed()
        return ids, stopped


class AsyncTandemScheduler(TandemScheduler, AsyncScheduler):
    """Scheduler where nothing is drafted: vLLM may schedule a step while the one before is computed."""


def _windows(scheduled: SchedulerOutput, made: ModelRunnerOutput) -> int:
    """Positions of a step whose logits were needed: drafts, and the one before each of the model's own tokens."""
    drafts = scheduled.scheduled_spec_decode_tokens
    pairs = zip(made.req_ids, made.sampled_token_ids, strict=True)
    return sum(1 + len(drafts.get(request_id, ())) for request_id, ids in pairs if ids)


def _replay(request: Request, output: Sequence[int]) -> None:
    """Mark these last tokens of the request's prompt as output of an earlier request."""
    if not output:
        return
    del request.prompt_token_ids[-len(output) :]
    request.num_prompt_tokens -= len(output)
    request._output_token_ids.extend(output)
    request.max_tokens += len(output)
    request.prefill_stats = None  # they would wonder at more tokens in the cache than a prompt has


def _rank(view: RequestView) -> int:
    return view.rank


def _parked_s(view: RequestView) -> float:
    return view.parked_s


EngineCore.tandem_ask = lambda self, asks: self.scheduler.ask(asks)
EngineCore.tandem_stats = lambda self: self.scheduler.stats()
