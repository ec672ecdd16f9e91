"""Promise 4: a policy sees only what has happened; what comes later cannot change an earlier decision.

A run is watched up to a moment: what policies were asked and answered, and what reached readers. Then everything that
no engine had computed by then is changed (true lengths, acceptances, later requests), and the same must be seen.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tandem.deployments.request.job import Job
from tandem.engine.base import Sampling
from tandem.engine.core.engine import CoreEngine, CoreSession
from tandem.policies.base import Registry
from tandem.policies.race.dispatch import dispatch
from tandem.policies.race.migration import migration
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.scheduling import scheduling
from tandem.policies.scheduling.batching import batching
from tandem.policies.speculation.window import window
from tandem.simulator.config.config import Config
from tandem.simulator.engines.script import Script
from tandem.simulator.runs.run import Clients
from tandem.simulator.workload import Request, build
from tests.simulator.configurations import DEVICE, TARGET, config
from tests.simulator.worlds import run

Seen = tuple[float, Any]

READ = {"readers": [[0.5, 4.0], [0.5, 15.0]]}
WORKLOAD = {
    "count": 24,
    "prompt": {"mean": 40, "cv": 0.5},
    "output": {"mean": 30, "cv": 0.5},
    "arrival": {"kind": "poisson", "rate_per_s": 8.0},
    "acceptance": {"kind": "alpha", "alpha": 0.7},
}
CROWDED = {
    "workload": {**WORKLOAD, **READ, "arrival": {"kind": "poisson", "rate_per_s": 25.0}},
    "targets": [{**TARGET, "kv_bytes": 1000}],
    "engine": {"kv_blocks": 20, "max_sessions": 4, "host_memory": {"blocks": 20, "copy_mb_per_s": 1.0}},
}
SPECULATION = {"targets": [{**TARGET, "measured_draft": {"base_s": 0.004}}], "workload": WORKLOAD}
RACES = {
    "mode": "race",
    "workload": {**WORKLOAD, **READ},
    "engine": {"latency": {"median_s": 0.15, "sigma": 1.0}},
}


def _with(changes: dict[str, Any], key: str, **more: Any) -> dict[str, Any]:
    return {**changes, key: {**changes.get(key, {}), **more}}


CASES: dict[str, dict[str, Any]] = {
    **{
        f"{mode}, scheduling {name}": {
            **_with(CROWDED, "engine", scheduling=None if name is None else {"name": name}),
            "mode": mode,
        }
        for name in (None, *scheduling)
        for mode in ("cloud", "speculative")
    },
    **{
        f"batching {name}": _with({"workload": WORKLOAD}, "engine", batching={"name": name})
        for name in batching
    },
    **{f"window {name}": {**SPECULATION, "window": {"name": name}} for name in window},
    **{f"dispatch {name}": {**RACES, "racing": {"dispatch": {"name": name}}} for name in dispatch},
    **{
        f"migration {name}": {
            **RACES,
            "racing": {"dispatch": {"name": "disco"}, "migration": {"name": name}},
            "accounts": {"exchange_rate": 0.0},
        }
        for name in migration
    },
    **{
        f"routing {name}": {
            "router": {"routing": {"name": name}},
            "workload": WORKLOAD,
            "targets": [{**TARGET, "count": 3}],
        }
        for name in routing
    },
    **{
        f"collaboration {name}": {
            "mode": None,
            "router": {"collaboration": {"name": name}},
            "workload": {**WORKLOAD, "modes": [[0.4, None], [0.3, "device"], [0.3, "cloud"]]},
            "devices": [{**DEVICE, "count": 5, "sessions": 3}],
        }
        for name in collaboration
    },
    "device": {"mode": "device", "workload": WORKLOAD, "devices": [{**DEVICE, "count": 5, "sessions": 3}]},
    "users who wait for their answers": {
        "workload": {**WORKLOAD, "arrival": {"kind": "closed", "users": 4, "think_s": 0.1}}
    },
}

KNOWING = config(mode="cloud", **_with(CROWDED, "engine", scheduling={"name": "buffer_aware"}))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if n % 3 else ()) for n, case in enumerate(CASES)]
)
def test_4_what_comes_later_changes_no_earlier_decision(case: str) -> None:
    families = _check(config(**CASES[case]))
    for family in FAMILIES:
        assert family not in case or f"{family} None" in case or family in families


FAMILIES = ("scheduling", "batching", "window", "dispatch", "migration", "routing", "collaboration")


def test_4_a_client_that_knew_the_length_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(self: Clients, request: Request, mode: str | None, device: int) -> Job:
        return ask(self, replace(request, max_tokens=request.output_tokens), mode, device)

    ask = Clients._job
    monkeypatch.setattr(Clients, "_job", told)
    with pytest.raises(AssertionError, match="^collaboration"):
        _check(KNOWING)


def test_4_an_engine_that_knew_the_length_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: dict[int, int] = {}

    def noted(self: Script, request: Request) -> tuple[int, ...]:
        prompt = add(self, request)
        lengths[prompt[0]] = request.output_tokens
        return prompt

    async def told(
        self: CoreEngine, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
    ) -> CoreSession:
        return await opened(
            self, prompt, msgspec.structs.replace(sampling, max_tokens=lengths[prompt[0]]), log
        )

    add, opened = Script.add, CoreEngine.open
    monkeypatch.setattr(Script, "add", noted)
    monkeypatch.setattr(CoreEngine, "open", told)
    with pytest.raises(AssertionError, match="^scheduling"):
        _check(KNOWING)


def _check(made: Config) -> set[str]:
    """The families of policies that had something to decide."""
    asked = build(made.workload)
    seen, computed, end_s = _watch(made, asked)
    for share in (0.3, 0.6):
        moment_s = share * end_s
        other, _, _ = _watch(made, _otherwise(asked, computed, moment_s))
        before, again = ([what for what in each if what[0] < moment_s] for each in (seen, other))
        assert len(before) > 10
        for a, b in zip(before, again, strict=False):
            assert a == b, f"{a[1][0]} at {a[0]} s: {a} and {b}"
        assert len(before) == len(again)
        assert seen[len(before) :] != other[len(before) :], "nothing was changed"
    return {what[0] for _, what in seen}


def _watch(
    made: Config, asked: Sequence[Request]
) -> tuple[list[Seen], dict[int, list[tuple[float, int]]], float]:
    """(what was decided and delivered, in order; by request, when which position was computed; the end)."""
    seen: list[Seen] = []
    computed: dict[int, list[tuple[float, int]]] = {}
    with _policies_watched(seen), _script_watched(computed):
        _, answers = run(made, asked)
    for i, answer in enumerate(answers):
        seen += [(r.time_s, ("reader", i, *r)) for r in answer.history or ()]
    seen.sort(key=lambda what: what[0])
    return seen, computed, max(answer.last_s for answer in answers)


def _otherwise(
    asked: Sequence[Request], computed: dict[int, list[tuple[float, int]]], moment_s: float
) -> list[Request]:
    """Other requests, of which nobody can have known anything else by then."""
    changed = []
    for number, request in enumerate(asked):
        known = max((p + 1 for at_s, p in computed.get(number, ()) if at_s < moment_s), default=0)
        bits, length = request.acceptance or b"", request.output_tokens
        if known < length:  # its end has not been seen
            length = known + 1 if number % 2 and known + 1 < length else length + 9
            ahead = bytes(1 - bit for bit in bits[known:])
            bits = (bits[:known] + ahead + bytes(length))[:length]
        prompt = request.prompt_tokens * (3 if request.arrival_s > moment_s else 1)
        changed.append(replace(request, prompt_tokens=prompt, output_tokens=length, acceptance=bits))
    return changed


@contextmanager
def _script_watched(computed: dict[int, list[tuple[float, int]]]) -> Iterator[None]:
    """Note, by index of the request, when which output position was first computed by a model."""
    firsts: list[int] = []

    def note(number: int, position: int) -> None:
        index = number - firsts[0]
        computed.setdefault(index, []).append((asyncio.get_running_loop().time(), position))

    class Watched(Script):
        def add(self, request: Request) -> tuple[int, ...]:  # type: ignore[override]  # as the run calls it
            prompt = super().add(request)
            firsts.append(prompt[0])
            return prompt

        def own(self, number: int, position: int) -> int:
            note(number, position)
            return super().own(number, position)

        def draft(self, number: int, position: int, count: int = 1) -> list[int]:
            ids = super().draft(number, position, count)
            for ahead in range(len(ids)):
                note(number, position + ahead)
            return ids

        def judge(self, number: int, position: int, drafts: Sequence[int]) -> tuple[int, int]:
            accepted, token = super().judge(number, position, drafts)
            note(number, position + accepted)
            return accepted, token

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tandem.simulator.world.world.Script", Watched)
        yield


@contextmanager
def _policies_watched(seen: list[Seen]) -> Iterator[None]:
    """Every policy that a registry makes meanwhile tells what it is asked and what it answers."""
    create = Registry.create

    def watched(self: Registry[Any], name: str, **parameters: object) -> Any:
        return _Watched(self.family, create(self, name, **parameters), seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "create", watched)
        yield


class _Watched:
    """A policy whose decisions are noted. A window policy's memory is read and set as its own."""

    def __init__(self, family: str, policy: Any, seen: list[Seen]) -> None:
        vars(self).update(_family=family, _policy=policy, _seen=seen)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._policy, name)
        if not inspect.ismethod(found):
            return found

        def noted(*asked: Any, **more: Any) -> Any:
            question = frozen((asked, more))
            answer = found(*asked, **more)
            try:
                now_s = asyncio.get_running_loop().time()
            except RuntimeError:  # the world is still being made
                now_s = 0.0
            self._seen.append((now_s, (self._family, name, question, frozen(answer))))
            return answer

        return noted

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._policy, name, value)


def frozen(value: Any) -> Any:
    """Return the present state shown to a policy. Functions are called for every argument;
    those without arguments, or of an objective, which may ask other policies, are not called."""
    if isinstance(value, (str, int, float, bytes, type(None))):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {str(key): frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "__next__"):
        return [frozen(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if callable(value):
        if inspect.signature(value).parameters.keys() <= {"objective"}:
            return None
        try:
            return frozen(value(None))  # of a device, or of any
        except TypeError:
            return frozen(value(1))  # of a number of tokens
    names = [
        *getattr(value, "__dict__", ()),
        *(n for c in type(value).__mro__ for n in getattr(c, "__slots__", ())),
    ]
    return {name: frozen(getattr(value, name, None)) for name in names}
