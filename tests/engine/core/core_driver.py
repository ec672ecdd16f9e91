"""Drives `engine.core.step.Core` as clients would, and checks every outcome against a reference without batches,
cache or preemption. The books and the contents of the cache are checked with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tandem.engine.base import Drafts, Sampling, Tokens, Verdict
from tandem.engine.config import EngineConfig, HostMemory
from tandem.engine.core.runner import Outcome, Runner, Work
from tandem.engine.core.sequence import Sequence as Session
from tandem.engine.core.step import Core
from tandem.engine.core.tasks import DraftTask, GenerateTask, Task, VerifyTask
from tandem.policies.scheduling import SchedulingPolicy
from tandem.policies.scheduling.batching import BatchingPolicy, ChunkedPrefill

VOCAB, EOS = 9, 2
Q = tuple[np.ndarray, np.ndarray]
"""(ids, probabilities), [drafts, width] each."""


class KnownRunner(Runner, Protocol):
    """A runner of which it is known what it must say and what its cache must hold; its vocabulary: VOCAB, EOS."""

    def verdict(
        self, prompt: list[int], output: list[int], sampling: Sampling, drafts: list[int], q: Q | None
    ) -> tuple[int, int]:
        """Return how many of the drafts are accepted after this output, and the token that follows them."""
        ...

    def proposal(
        self, prompt: list[int], output: list[int], sampling: Sampling
    ) -> tuple[int, tuple[list[int], list[float]] | None]:
        """The token that a draft goes on with, and what it is drawn from, None for a greedy one."""
        ...

    def cells(self) -> list[tuple[int, int]]:
        """(token, position) of every slot of the KV cache, copies under way included."""
        ...

    def host_cells(self) -> list[tuple[int, int]]:
        """Return the contents of host memory's cells."""
        ...


MakeRunner = Callable[[int, int], KnownRunner]
"""Makes a runner for a number of blocks and their size."""


@dataclass(eq=False, repr=False)
class Client:
    """A session as its client knows it: confirmed output only."""

    sequence: Session
    prompt: list[int]
    sampling: Sampling
    output: list[int]
    finish: str | None = None
    busy: str | None = None  # the operation under way
    drafts: list[int] = field(default_factory=list)  # the last proposals

    def __repr__(self) -> str:
        return f"client {self.sequence.number}"

    def end(self) -> str | None:
        """Why the output ends, looking at all of it."""
        s = self.sampling
        for count, token in enumerate(self.output, 1):
            if token in s.stop_tokens or (token == EOS and not s.ignore_eos):
                return "stop"
            if count == s.max_tokens:
                return "length"
        return None


class _Counted:
    """A runner that notes the positions computed in each step."""

    def __init__(self, runner: KnownRunner) -> None:
        self._runner = runner
        self.copy_block, self.free_block = runner.copy_block, runner.free_block
        self.host_copies = runner.host_copies
        self.positions: list[int] = []

    def run(self, work: Work, complete: Sequence[Session]) -> list[Outcome]:
        self.positions.append(sum(grant for _, grant in work))
        return self._runner.run(work, complete)


class Driver:
    """A core over a runner that is known, and its clients in the order of their opening."""

    def __init__(
        self,
        make: MakeRunner,
        blocks: int = 12,
        block_size: int = 4,
        budget: int = 24,
        batching: BatchingPolicy | None = None,
        scheduling: SchedulingPolicy | None = None,
        max_running: int | None = None,
        host: HostMemory | None = None,
        lookup: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        self.runner, self.now = make(blocks, block_size), 0.0
        counted = _Counted(self.runner)
        self.positions = counted.positions
        config = EngineConfig(
            kv_blocks=blocks,
            block_size=block_size,
            token_budget=budget,
            max_running=max_running,
            host_memory=host,
            lookup=lookup,
            prefix_caching=prefix_caching,
        )
        self.core = Core(
            counted,
            config,
            lambda: self.now,
            batching_policy=batching or ChunkedPrefill(chunk=8),
            scheduling_policy=scheduling,
        )
        self.clients: list[Client] = []
        self.numbers = 0
        self.done: Counter[str] = Counter()

    # -- operations: started here, checked where their outcome is delivered ----------------------------

    def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Client:
        self.numbers += 1
        sequence = Session(self.numbers, list(prompt), list(log), sampling, EOS)
        client = Client(sequence, list(prompt), sampling, list(log))
        client.finish = client.end()
        self.clients.append(client)
        self.core.open(sequence)
        return client

    def generate(self, client: Client) -> None:
        def deliver(tokens: Tokens) -> None:
            assert client.busy == "generate"
            for token in tokens.ids:
                _, expected = self.runner.verdict(client.prompt, client.output, client.sampling, [], None)
                assert token == expected, "generate"
                client.output.append(token)
            client.finish = client.end()
            assert tokens.finish == client.finish
            assert bool(tokens.ids) or tokens.finish
            if client.finish:
                self._settled(client)

        client.busy = "generate"
        self.core.assign(client.sequence, GenerateTask(deliver))

    def verify(self, client: Client, drafts: list[int], q: Q | None = None) -> None:
        def deliver(verdict: Verdict) -> None:
            assert client.busy == "verify"
            self._settled(client)
            if client.finish:
                assert verdict == Verdict(0, [], client.finish)
                return
            room = client.sampling.max_tokens - len(client.output)
            stand = drafts[: room - 1]
            (task,) = begun
            assert isinstance(task, VerifyTask)
            assert task.drafts[: len(stand)] == stand or (q is None and self.core.config.lookup)
            assert len(task.drafts) <= max(len(stand), self.core.config.lookup)
            stated = None
            if task.q_ids is not None and task.q_probs is not None:
                stated = task.q_ids, task.q_probs
                assert (task.q_probs[len(stand) :] == 0).all(), "point masses"
            accepted, own = self.runner.verdict(
                client.prompt, client.output, client.sampling, task.drafts, stated
            )
            expected: list[int] = []
            for token in [*task.drafts[:accepted], own]:
                expected.append(token)
                client.output.append(token)
                client.finish = client.end()
                if client.finish:
                    break
            assert verdict.ids == expected
            assert verdict.ids[: verdict.accepted] == stand[: verdict.accepted]
            if task.drafts[: len(stand)] == stand:
                assert verdict.accepted == min(accepted, len(stand), len(expected))
            assert verdict.finish == client.finish

        client.busy = "verify"
        q_ids, q_probs = (None, None) if q is None else q
        begun: list[Task | None] = []
        self.core.assign(client.sequence, VerifyTask(list(drafts), q_ids, q_probs, deliver))
        begun.append(client.sequence.task)

    def extend(self, client: Client, position: int, tokens: list[int]) -> None:
        self.core.extend(client.sequence, position, list(tokens))
        client.output[position:] = tokens
        client.finish = client.end()
        client.drafts = []

    def draft(self, client: Client, position: int, tokens: list[int], window: int) -> None:
        self.extend(client, position, tokens)

        def deliver(draft: Drafts) -> None:
            assert client.busy == "draft"
            self._settled(client)
            client.drafts = list(draft.ids)
            expected, q = self.proposals(client, window)
            assert draft.ids == expected
            if client.sampling.greedy or not expected:
                assert draft.probs is None
            else:
                assert draft.probs is not None
                ids, probs = draft.probs.arrays()
                assert list(zip(ids.tolist(), probs.tolist(), strict=True)) == q

        client.busy = "draft"
        self.core.assign(client.sequence, DraftTask(window, deliver))

    def proposals(self, client: Client, window: int) -> tuple[list[int], list[tuple[list[int], list[float]]]]:
        """Return the client's expected draft: its tokens, and the distributions they are drawn from."""
        s = client.sampling
        proposed: list[int] = []
        qs: list[tuple[list[int], list[float]]] = []
        while len(proposed) < window and not client.finish:
            token, q = self.runner.proposal(client.prompt, client.output + proposed, s)
            proposed.append(token)
            if q is not None:
                qs.append(q)
            ends = token in s.stop_tokens or (token == EOS and not s.ignore_eos)
            if ends or len(client.output) + len(proposed) >= s.max_tokens:
                break
        return proposed, qs

    def pause(self, client: Client) -> None:
        assert client.busy == "generate"
        client.busy = None
        self.core.pause(client.sequence)

    def cancel(self, client: Client) -> None:
        self.clients.remove(client)
        client.busy = "cancelled"  # any delivery now fails
        self.core.cancel(client.sequence)

    def _settled(self, client: Client) -> None:
        self.done[str(client.busy)] += 1
        client.busy = None

    # -- running ----------------------------------------------------------------------------------------

    @property
    def idle(self) -> list[Client]:
        """Clients that may begin an operation."""
        return [c for c in self.clients if c.busy is None]

    @property
    def waiting(self) -> list[Session]:
        """Sessions that hold no blocks."""
        return self.core.memory.waiting

    def step(self) -> bool:
        """One step of the core, 10 ms long."""
        self.now += 0.01
        return self.core.step()

    def run(self, most: int = 3000) -> None:
        """Steps until nothing is left to do that there is room for."""
        for _ in range(most):
            if not self.step():
                if self.core.idle_s is None:
                    return
                self.now += self.core.idle_s + 1e-4
        raise AssertionError(f"{most} steps and no end: the core goes round in circles")

    def finish_all(self) -> None:
        """Every operation under way comes to its end, however many sessions hold the cache at rest."""
        self.run()
        assert not [c for c in self.clients if c.busy], "the core rests with work undone"

    def check(self) -> None:
        """The books: every block is held as often as it is counted, and holds what it should."""
        memory, pool = self.core.memory, self.core.memory.pool
        leaving = [block for _, table in memory._leaving for block in table.blocks]
        held = Counter([b for s in memory.sequences.values() for b in s.table.blocks] + leaving)
        assert held == pool._references
        assert pool.available + len(held) == pool.num_blocks
        assert list(memory.sequences.values()) == [c.sequence for c in self.clients]
        waiting = [s.number for s in memory.waiting]
        assert waiting == [c.sequence.number for c in self.clients if not c.sequence.admitted], (
            "those that hold no blocks wait, in the order of opening"
        )
        active = [s.number for s in memory.sequences.values() if s.pending > 0 or s.loading is not None]
        assert set(active) <= set(memory._active)
        assert set(memory._active) <= set(memory.sequences)
        cells, host_cells = self.runner.cells(), self.runner.host_cells()
        for client in self.clients:
            s = client.sequence
            assert s.tokens[: s.confirmed] == client.prompt + client.output
            assert (s.task is None) == (client.busy is None)
            assert s.computed <= max(len(s.tokens) - 1, 0)
            content = [(token, position) for position, token in enumerate(s.tokens)]
            assert s.stored <= len(s.hosts) * pool.block_size
            assert self._read(host_cells, s.hosts, s.stored) == content[: s.stored]
            if not s.admitted:
                assert (s.table.blocks, s.computed) == ([], 0)
            assert self._read(cells, s.table.blocks, s.computed) == content[: s.computed]
        hosts = [h for s in memory.sequences.values() for h in s.hosts]
        assert len(hosts) == len(set(hosts))
        if memory.tier is not None:
            assert len(hosts) + memory.tier.free == memory.tier.settings.blocks

    def _read(self, cells: list[tuple[int, int]], blocks: list[int], tokens: int) -> list[tuple[int, int]]:
        size = self.core.memory.block_size
        return [cells[blocks[i // size] * size + i % size] for i in range(tokens)]
