"""Drives `engine.core.Core` as clients would, and checks every outcome against a reference without batches,
cache or preemption. The books and the contents of the cache are checked with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from engine.base import Draft, Sampling, Tokens, Verdict
from engine.chance import Purpose, uniforms
from engine.core import Core
from engine.hosttier import TierSettings
from engine.sampling import distributions, draw, penalise, sparse
from engine.sequence import Generate, Propose, Verify
from engine.sequence import Sequence as Session
from engine.verification import Window, verify
from policies.batching import BatchingPolicy, ChunkedPrefill
from policies.scheduling import SchedulingPolicy
from tests.engine.history_model import EOS, HistoryModel, logits_after, slots


@dataclass
class Client:
    """A session as its client knows it: confirmed output only."""

    prompt: list[int]
    sampling: Sampling
    output: list[int]
    finish: str | None = None
    busy: str | None = None  # the operation under way
    drafts: list[int] = field(default_factory=list)  # the last proposals

    def logits(self, beyond: Sequence[int] = ()) -> torch.Tensor:
        """[1, vocab] after the output and `beyond`, penalties applied."""
        output = [*self.output, *beyond]
        return penalise(
            logits_after(self.prompt + output)[None], [self.sampling], lambda _: (self.prompt, output)
        )

    def next_token(self) -> int:
        return verify(self.logits(), [Window([], len(self.output), self.sampling)])[0][1]

    def end(self) -> str | None:
        """Why the output ends, looking at all of it."""
        s = self.sampling
        for count, token in enumerate(self.output, 1):
            if token in s.stop_tokens or (token == EOS and not s.ignore_eos):
                return "stop"
            if count == s.max_tokens:
                return "length"
        return None


class Driver:
    """A core over the history model, and its clients by session id."""

    def __init__(
        self,
        blocks: int = 12,
        block_size: int = 4,
        budget: int = 24,
        batching: BatchingPolicy | None = None,
        scheduling: SchedulingPolicy | None = None,
        max_running: int | None = None,
        tier: TierSettings | None = None,
    ) -> None:
        self.model, self.now = HistoryModel(), 0.0
        self.core = Core(
            self.model,  # type: ignore[arg-type]
            blocks,
            block_size,
            batching or ChunkedPrefill(chunk=8),
            budget,
            scheduling=scheduling,
            max_running=max_running,
            tier=tier,
            clock=lambda: self.now,
        )
        self.clients: dict[int, Client] = {}
        self.numbers = 0
        self.done: Counter[str] = Counter()

    # -- operations: started here, checked where their outcome is delivered ----------------------------

    def open(self, session: int, prompt: list[int], sampling: Sampling, log: Sequence[int] = ()) -> Client:
        client = Client(list(prompt), sampling, list(log))
        client.finish = client.end()
        self.clients[session] = client
        self.numbers += 1
        self.core.open(Session(session, self.numbers, list(prompt), list(log), sampling, EOS, None))
        return client

    def generate(self, session: int) -> None:
        client = self.clients[session]

        def deliver(tokens: Tokens) -> None:
            assert client.busy == "generate"
            for token in tokens.ids:
                assert token == client.next_token(), "generate"
                client.output.append(token)
            client.finish = client.end()
            assert tokens.finish == client.finish
            assert bool(tokens.ids) or tokens.finish
            if client.finish:
                self._settled(client)

        client.busy = "generate"
        self.core.assign(session, Generate(deliver))

    def verify(
        self,
        session: int,
        drafts: list[int],
        q: tuple[np.ndarray, np.ndarray] | tuple[None, None] = (None, None),
    ) -> None:
        client = self.clients[session]
        q_ids, q_probs = q

        def deliver(verdict: Verdict) -> None:
            assert client.busy == "verify"
            self._settled(client)
            if client.finish:
                assert verdict == Verdict(0, [], client.finish)
                return
            room = client.sampling.max_tokens - len(client.output)
            stand = drafts[: room - 1]
            window = Window(
                stand,
                len(client.output),
                client.sampling,
                None if q_ids is None else q_ids[: len(stand)],
                None if q_probs is None else q_probs[: len(stand)],
            )
            rows = torch.cat([client.logits(stand[:j]) for j in range(len(stand) + 1)])
            ((accepted, own),) = verify(rows, [window])
            expected: list[int] = []
            for token in [*stand[:accepted], own]:
                expected.append(token)
                client.output.append(token)
                client.finish = client.end()
                if client.finish:
                    break
            assert verdict.ids == expected
            assert verdict.accepted == min(accepted, len(expected))
            assert verdict.finish == client.finish

        client.busy = "verify"
        self.core.assign(session, Verify(list(drafts), q_ids, q_probs, deliver))

    def extend(self, session: int, position: int, tokens: list[int]) -> None:
        client = self.clients[session]
        self.core.extend(session, position, list(tokens))
        client.output[position:] = tokens
        client.finish = client.end()
        client.drafts = []

    def draft(self, session: int, position: int, tokens: list[int], window: int) -> None:
        client = self.clients[session]
        self.extend(session, position, tokens)

        def deliver(draft: Draft) -> None:
            assert client.busy == "draft"
            self._settled(client)
            client.drafts = list(draft.ids)
            expected, ids, probs = self._proposals(client, window)
            assert draft.ids == expected
            if client.sampling.greedy or not expected:
                assert draft.probs is None
            else:
                got_ids, got_probs = draft.probs.arrays()
                assert got_ids.tolist() == ids
                assert got_probs.tolist() == probs

        client.busy = "draft"
        self.core.assign(session, Propose(window, deliver))

    def _proposals(self, client: Client, window: int) -> tuple[list[int], list, list]:
        s, proposed = client.sampling, []
        all_ids, all_probs = [], []
        if client.finish:
            return [], [], []
        while len(proposed) < window:
            logits = client.logits(proposed)
            position = len(client.output) + len(proposed)
            if s.greedy:
                token = int(logits.argmax())
            else:
                ids, probs = sparse(distributions(logits, [s]))
                token = int(ids[0, int(draw(probs, uniforms([s.seed], [position], Purpose.DRAFT)))])
                all_ids.append(ids[0].tolist())
                all_probs.append(probs[0].tolist())
            proposed.append(token)
            ends = token in s.stop_tokens or (token == EOS and not s.ignore_eos)
            if ends or position + 1 >= s.max_tokens:
                break
        return proposed, all_ids, all_probs

    def pause(self, session: int) -> None:
        assert self.clients[session].busy == "generate"
        self.clients[session].busy = None
        self.core.pause(session)

    def cancel(self, session: int) -> None:
        client = self.clients.pop(session)
        client.busy = "cancelled"  # any delivery now fails
        self.core.cancel(session)

    def _settled(self, client: Client) -> None:
        self.done[str(client.busy)] += 1
        client.busy = None

    # -- running ----------------------------------------------------------------------------------------

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
        assert not [i for i, c in self.clients.items() if c.busy], "the core rests with work undone"

    def check(self) -> None:
        """The books: every block is held as often as it is counted, and holds what it should."""
        core, pool = self.core, self.core.memory.pool
        leaving = [block for _, table in core.memory._leaving for block in table.blocks]
        held = Counter([b for s in core.memory.sequences.values() for b in s.table.blocks] + leaving)
        assert [held[b] for b in range(pool.num_blocks)] == pool._references
        assert pool.available + len(held) == pool.num_blocks
        assert sorted(core.memory.sequences) == sorted(self.clients)
        waiting = [s.number for s in core.memory.waiting]
        assert waiting == sorted(waiting), "admission is in the order of opening"
        assert {s.session for s in core.memory.waiting} == {
            s.session for s in core.memory.sequences.values() if not s.admitted
        }
        cells = slots(core.kv)
        for s in core.memory.sequences.values():
            client = self.clients[s.session]
            assert s.tokens[: s.confirmed] == client.prompt + client.output
            assert (s.task is None) == (client.busy is None)
            assert s.computed <= max(len(s.tokens) - 1, 0)
            self._check_host(s)
            if not s.admitted:
                assert (s.table.blocks, s.computed) == ([], 0)
                continue
            where = [s.table.blocks[i // pool.block_size] * pool.block_size + i % pool.block_size
                     for i in range(s.computed)]  # fmt: skip
            assert cells[where, 0].tolist() == s.tokens[: s.computed]
            assert cells[where, 1].tolist() == list(range(s.computed))
        hosts = [h for s in core.memory.sequences.values() for h in s.hosts]
        assert len(hosts) == len(set(hosts))
        if core.memory.tier is not None:
            assert len(hosts) + core.memory.tier.free == core.memory.tier.settings.blocks

    def _check_host(self, s: Session) -> None:
        """What lies in host memory is what the session computed, and no more is counted on."""
        size, tier = self.core.memory.pool.block_size, self.core.memory.tier
        assert s.stored <= len(s.hosts) * size
        if tier is None or not s.hosts:
            return
        cells = tier._host[0].view(tier.settings.blocks * size, -1)
        where = [s.hosts[i // size] * size + i % size for i in range(s.stored)]
        assert cells[where, 0].tolist() == s.tokens[: s.stored]
        assert cells[where, 1].tolist() == list(range(s.stored))
