"""Interface of the outer part of a split model, at a device.

The outer part is the model's two ends: embedding, first m layers and, after the middle, norm and head. With an adapter
between them it drafts. A round of a session, whose middle is a forward session elsewhere (`Session.forward`):

    proposal = await outer.propose(longest, go_on)
    forwarded = await middle.forward(proposal.position, proposal.hidden, proposal.wanted)
    judgement = await outer.judge(forwarded.hidden)

A long prompt goes ahead in chunks (`shallow`), for which the middle is to send nothing back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.engine.base import EngineError, EngineInfo, EngineStats, Sampling, SplitInfo, Tensor, Verdict
from tandem.engine.split.hidden_states import Kind

DESCRIPTION = "split.json"
"""Name of the file that describes a bundle, the folder with an outer part."""


class SplitMismatch(EngineError):
    """The parts do not make one model."""

    code = "split_mismatch"


@dataclass(frozen=True, slots=True)
class Shallow:
    """Hidden states after the first m layers, of the positions from `position` on, which the middle is to see next."""

    position: int
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class Proposal(Shallow):
    """Drafted tokens, and the shallow states of all positions up to the last of them.

    ids: none where there is no adapter or none were wanted.
    probabilities: with which each was drafted.
    alternatives: (id, probability) of the likeliest in the place of the last one, best first.
    """

    ids: list[int]
    probabilities: list[float]
    alternatives: list[tuple[int, float]]

    @property
    def wanted(self) -> int:
        """Number of last rows that the middle must send back: those that judge the drafts, and the one after."""
        return len(self.ids) + 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """The model's verdict on a proposal.

    position: up to which the middle's KV cache is still right; the next hidden states begin there.
    ready: drafted tokens of an adopted branch.
    steps, steps_s: steps of all branches together, and their seconds.
    """

    verdict: Verdict
    position: int
    ready: int = 0
    steps: int = 0
    steps_s: float = 0.0


GoOn = Callable[[float], bool]
"""Whether to draft on after a token that was drafted with this probability."""


def always(probability: float) -> bool:
    """Draft as long as possible."""
    return True


class OuterSession(Protocol):
    """A prompt and its output at the outer part. One operation runs at a time; positions count from the prompt's first
    token on.

    kind: of its hidden states on the wire from now on.
    """

    kind: Kind

    async def shallow(self, count: int) -> Shallow:
        """Return the next `count` positions of confirmed tokens, except the last one, which goes with the next
        proposal; fewer, or none, if no more are left. They are computed ahead, in the background."""
        ...

    async def propose(self, longest: int, go_on: GoOn = always) -> Proposal:
        """Draft up to `longest` tokens, the last of which is the first with which `go_on` has enough. It is called
        where drafting happens, which may be another thread; once for each token, unless the draft ends with it anyhow.

        What an adopted branch has drafted already counts. Nothing is computed twice: not the positions that were
        drafted from, nor, where a proposal is asked for again, any.
        """
        ...

    async def branch(self, alternatives: int, steps: int) -> int:
        """Draft, while the middle works, up to `steps` tokens after each of `alternatives` alternatives for the last
        drafted one (itself the first of them), as one batch in the background. Return the number of branches: fewer if
        memory is short or an alternative would end the output. `judge` adopts the one that comes true; all operations
        but `rewind` and `skip` drop the others."""
        ...

    async def judge(self, deep: Tensor) -> Judgement:
        """Deep hidden states of a proposal's `wanted` last positions to tokens: the drafts that stand and the model's
        own token, sampled as any engine does. Positions beyond are rolled back here."""
        ...

    async def rewind(self, position: int) -> None:
        """Send states from `position` on again, because the middle has lost them (0: its session)."""
        ...

    async def skip(self, position: int) -> None:
        """Send no states before `position`, because the middle has kept them."""
        ...

    async def extend(self, position: int, tokens: Sequence[int]) -> None:
        """Set the output from output position `position` on, as `Session.extend`."""
        ...

    async def cancel(self) -> None:
        """End the session, as `Session.cancel`."""
        ...


class OuterEngine(Protocol):
    """Sessions of the outer part. Its info's `split` says which middle it fits.

    kind: of its sessions' hidden states on the wire, unless they are told another.
    """

    kind: Kind

    @property
    def info(self) -> EngineInfo: ...

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> OuterSession:
        """Open a session, as `Engine.open`; prompt and log are computed at once."""
        ...

    async def stats(self) -> EngineStats: ...

    async def close(self) -> None:
        """Stop working; open sessions fail with EngineStopped."""
        ...


def misfit(outer: SplitInfo, middle: SplitInfo) -> str | None:
    """Why two parts do not make one model; None: they do."""
    if outer.checksum != middle.checksum:
        return f"the outer part was cut from the model {outer.checksum[:12]}, the middle from {middle.checksum[:12]}"
    if (outer.first, outer.layers, outer.hidden) != (middle.first, middle.layers, middle.hidden):
        return (
            f"the outer part ends before layer {outer.first} of {outer.layers} ({outer.hidden} wide), the middle "
            f"begins at {middle.first} of {middle.layers} ({middle.hidden} wide)"
        )
    return None


def check_fit(outer_info: EngineInfo, middle_info: EngineInfo) -> None:
    """Raises SplitMismatch, saying in which way two engines have no parts of one model."""
    outer, middle = outer_info.split, middle_info.split
    if outer is None or middle is None:
        whole = outer_info if outer is None else middle_info
        raise SplitMismatch(f"{whole.model} is no part of a split model")
    if (why := misfit(outer, middle)) is not None:
        raise SplitMismatch(why)
