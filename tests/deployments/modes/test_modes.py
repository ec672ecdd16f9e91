"""The modes: each one's tokens, origins and counts, and that speculation loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.deployments.modes import AT_DEVICES, AT_FRONT_DOORS, MODES
from tandem.deployments.modes.base import EndpointRole, Services
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.modes.speculative.mode import PairBriefing, Speculation, SpeculativeMode, drafting
from tandem.deployments.modes.speculative.pairs import Pairs
from tandem.deployments.modes.speculative.settings import SpeculativeOptions
from tandem.deployments.request.assignment import Assignment, EndpointInfo
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.session import EndpointSessions, Reach, RequestContext
from tandem.deployments.request.tokenlog import Origin, TokenLog
from tandem.engine.base import Draft, Drafts, Engine, Sampling
from tandem.engine.null.engine import NullEngine, NullSession
from tandem.policies.speculation.history import PairHistory
from tandem.policies.speculation.window import StaticWindow, WindowPolicy, WindowState
from tests.deployments.faults import PROMPT, Script, reference, with_window

pytestmark = pytest.mark.virtual_time


async def answer(
    mode: type[CloudMode | DeviceMode | SpeculativeMode],
    engines: dict[str, Engine],
    wanted: Job,
    window: WindowPolicy | None = None,
    log: TokenLog | None = None,
    pair: PairHistory | None = None,
    batch_limit: int = 0,
    target_rtt_s: float = 0.0,
) -> tuple[TokenLog, str, JobStats]:
    """Run a mode to its end with these engines by role, entering every delta into the log as the executor does.

    pair: in place of the one that the mode would make.
    target_rtt_s: of the link to the target, as configured.
    """

    async def dial(endpoint: EndpointInfo) -> Engine:
        return engines[endpoint.engine]

    log, stats = log or TokenLog(), JobStats()
    there = {role: EndpointInfo(role, role, role, device=role == "device") for role in engines}
    if "target" in there:
        there["target"] = replace(there["target"], rtt_s=target_rtt_s)
    settings = with_window(lambda: window or StaticWindow()) if mode is SpeculativeMode else mode.settings()
    made = mode(settings, Services())
    history = pair or PairHistory(window or StaticWindow())
    if isinstance(made, SpeculativeMode) and pair is not None:
        made._pairs = Only(pair)
    run = made.start(wanted)
    stats.figures[made.name] = run.figures
    sessions = EndpointSessions(Assignment(made.name, there), RequestContext(Reach(dial), stats))
    briefing = PairBriefing(history.target.queue, batch_limit, PairHistory(StaticWindow()).snapshot())
    try:
        async for delta in run.run(sessions, log, briefing):
            log.append(delta.position, delta.ids, delta.origins)
            if delta.finish:
                return log, delta.finish, stats
    finally:
        for session in sessions.all:
            await session.close()
    raise AssertionError("the answer ended without a finish")


class Only(Pairs):
    """Knows one pair, whoever is asked for."""

    def __init__(self, pair: PairHistory) -> None:
        self.pair = pair

    def of(self, drafter: EndpointInfo, target: EndpointInfo) -> PairHistory:
        return self.pair


def speculation(device: Engine | None = None, cloud: Engine | None = None) -> dict[str, Engine]:
    """A target, and who drafts for it."""
    helpers = {"device": device, "drafter": cloud}
    return {"target": NullEngine(50)} | {role: e for role, e in helpers.items() if e is not None}


def job(max_tokens: int = 20, **fields: object) -> Job:
    return Job(7, PROMPT, Sampling(max_tokens=max_tokens), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "role", "origin"),
    [(CloudMode, "target", Origin.CLOUD), (DeviceMode, "device", Origin.DEVICE)],
)
async def test_one_engine_decodes_alone(
    mode: type[CloudMode | DeviceMode], role: str, origin: Origin
) -> None:
    log, finish, _ = await answer(mode, {role: NullEngine()}, job())
    assert (log.ids, finish) == (reference(PROMPT, 20), "length")
    assert set(log.origins) == {origin}


async def test_a_mode_continues_a_log() -> None:
    expected = reference(PROMPT, 20)
    for mode, engines in (
        (CloudMode, {"target": NullEngine()}),
        (SpeculativeMode, speculation(cloud=NullEngine())),
    ):
        begun = TokenLog(expected[:9], [Origin.DEVICE] * 9)
        log, _, _ = await answer(mode, engines, job(), StaticWindow(3), begun)
        assert log.ids == expected


async def test_a_perfect_drafter_has_all_drafts_accepted() -> None:
    log, finish, stats = await answer(
        SpeculativeMode, speculation(cloud=NullEngine()), job(21), StaticWindow(4)
    )
    seen = Speculation.of(stats)
    assert (log.ids, finish) == (reference(PROMPT, 21), "length")
    assert (seen.rounds, seen.drafted, seen.accepted) == (4, 16, 16)
    assert log.by_origin() == {"cloud": 1, "draft": 16, "bonus": 4}


async def test_a_rejected_draft_is_corrected() -> None:
    engines = speculation(cloud=NullEngine(mistake_every=3))
    log, _, stats = await answer(SpeculativeMode, engines, job(12), StaticWindow(4))
    assert log.ids == reference(PROMPT, 12)
    wrong = [position for position, origin in enumerate(log.origins) if origin is Origin.CORRECTED]
    assert wrong == [2, 5, 8]  # 11 is the last token, which is never drafted
    assert Speculation.of(stats).accepted == log.by_origin()["draft"]


class Scripted(NullEngine):
    """Drafts wrongly exactly where the script says so, whatever the positions."""

    def __init__(self, script: list[bool]) -> None:
        super().__init__()
        self.script, self.at = script, 0

    class session_class(NullSession):
        _engine: Scripted

        async def _draft(self, operation: Draft) -> Drafts:
            draft, engine = await super()._draft(operation), self._engine
            for n, token in enumerate(draft.ids):
                engine.at += 1
                if engine.script[engine.at % len(engine.script)]:
                    draft.ids[n] = 16 + (token - 15) % 2032
            return draft


@given(
    gamma=st.integers(1, 12),
    script=st.lists(st.booleans(), min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    prompt=st.lists(st.integers(0, 2047), min_size=1, max_size=8),
)
async def test_speculation_is_lossless(
    gamma: int, script: list[bool], max_tokens: int, prompt: list[int]
) -> None:
    wanted = Job(1, tuple(prompt), Sampling(max_tokens=max_tokens))
    engines = speculation(cloud=Scripted(script))
    log, finish, stats = await answer(SpeculativeMode, engines, wanted, StaticWindow(gamma))
    seen = Speculation.of(stats)
    assert (log.ids, finish) == (reference(prompt, max_tokens), "length")
    assert seen.drafted <= gamma * seen.rounds
    assert seen.accepted == log.by_origin().get("draft", 0)


async def test_the_client_may_fix_the_window() -> None:
    engines = speculation(cloud=NullEngine())
    _, _, stats = await answer(
        SpeculativeMode, engines, job(30, options=(SpeculativeOptions(window=7),)), StaticWindow(2)
    )
    assert (
        Speculation.of(stats).drafted == 7 * 3 + 4
    )  # 1 + 3 × 8, then 5 left of which the target adds the last


async def test_a_stop_token_ends_the_answer_inside_a_draft() -> None:
    expected = reference(PROMPT, 20)
    stopping = Job(1, PROMPT, Sampling(max_tokens=20, stop_tokens=(expected[6],)))
    engines = speculation(cloud=NullEngine())
    log, finish, _ = await answer(SpeculativeMode, engines, stopping, StaticWindow(5))
    assert (log.ids, finish) == (expected[:7], "stop")


async def test_the_window_policy_sees_what_the_pair_has_done() -> None:
    seen: list[WindowState] = []

    class Watching(StaticWindow):
        def choose(self, state: WindowState) -> int:
            seen.append(state)
            return super().choose(state)

    pair = PairHistory(Watching(2), rtt_s=0.01)
    pair.target.queue = 0.5
    await answer(SpeculativeMode, speculation(cloud=NullEngine(50, mistake_every=2)), job(12), pair=pair)
    assert (seen[0].acceptance, seen[0].tpot_s, seen[0].previous) == (0.0, 0.0, 0)
    assert 0 < seen[-1].acceptance < 1
    assert seen[-1].tpot_s > 0
    assert (seen[-1].rtt_s, seen[-1].queue, seen[-1].previous) == (0.01, 0.5, 2)


@given(
    windows=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    script=st.lists(st.booleans(), min_size=1, max_size=40),
    max_tokens=st.integers(1, 60),
    helped=st.booleans(),
)
async def test_switching_in_mid_answer_is_lossless(
    windows: list[int], script: list[bool], max_tokens: int, helped: bool
) -> None:
    engines = speculation(Scripted(script), Scripted([*script, True]) if helped else None)
    log, finish, stats = await answer(SpeculativeMode, engines, job(max_tokens), Script(windows))
    seen = Speculation.of(stats)
    assert (log.ids, finish) == (reference(PROMPT, max_tokens), "length")
    assert seen.fused_rounds <= seen.rounds
    assert (seen.fused_rounds == seen.rounds) or any(w > 1 for w in windows)
    assert seen.accepted == log.by_origin().get("draft", 0)


async def test_fused_rounds_leave_the_device_alone_and_it_takes_up_again() -> None:
    asked: list[tuple[str, int, int]] = []

    class Noting(NullEngine):
        def __init__(self, name: str) -> None:
            super().__init__(50)
            self.name = name

        class session_class(NullSession):
            _engine: Noting

            async def _draft(self, operation: Draft) -> Drafts:
                asked.append((self._engine.name, operation.position, len(operation.ids)))
                return await super()._draft(operation)

    pair = PairHistory(Script([3, 1, 1, 3]))
    engines = speculation(Noting("device"), Noting("cloud"))
    log, _, stats = await answer(SpeculativeMode, engines, job(1 + 4 + 5 + 5 + 4), pair=pair)
    seen = Speculation.of(stats)
    assert log.ids == reference(PROMPT, 19)
    # (who, from which output position, how many confirmed tokens it is told)
    assert asked == [("device", 0, 1), ("cloud", 5, 0), ("cloud", 5, 5), ("device", 1, 14)]
    assert (seen.rounds, seen.fused_rounds, seen.switches) == (4, 2, 2)
    assert (seen.drafted, seen.fused_drafted) == (14, 8)
    assert pair.state().fused_s > 0


@pytest.mark.parametrize(
    ("helper", "max_tokens", "noted"),
    [(True, 1 + 5 + 5 + 2, [(4, False), (4, False), (1, True)]), (False, 1 + 2, [(0, False), (0, False)])],
)
async def test_the_pair_is_told_which_fused_round_the_outputs_end_has_cut(
    helper: bool, max_tokens: int, noted: list[tuple[int, bool]]
) -> None:
    told: list[tuple[int, bool]] = []

    class Noting(PairHistory):
        def note_fused(self, drafted: int, tokens: int, seconds: float, cut: bool = False) -> None:
            told.append((drafted, cut))

    engines = speculation(NullEngine(), NullEngine() if helper else None)
    await answer(SpeculativeMode, engines, job(max_tokens), pair=Noting(Script([1])))
    assert told == noted


async def test_a_window_the_client_fixed_is_never_fused() -> None:
    engines = speculation(NullEngine(), NullEngine())
    _, _, stats = await answer(
        SpeculativeMode, engines, job(20, options=(SpeculativeOptions(window=1),)), Script([1])
    )
    seen = Speculation.of(stats)
    assert seen.fused_rounds == 0
    assert seen.drafted == 9  # 1 + 9 × 2, and the last token is the target's alone


@pytest.mark.parametrize(("probs", "temperature"), [(True, 0.7), (False, 0.0)])
def test_the_drafter_draws_with_coins_of_its_own(probs: bool, temperature: float) -> None:
    target = Sampling(temperature=0.7, seed=12, stop=("\n",), logprobs=3)
    drafter = drafting(target, probs)
    drafter.check()
    assert drafter.seed != target.seed
    assert (drafter.temperature, drafter.stop, drafter.logprobs) == (temperature, (), -1)


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("given_", [True, False])
async def test_drafts_are_greedy_where_their_probabilities_do_not_reach_the_target(
    taken: bool, given_: bool
) -> None:
    seen: list[float] = []

    class Sampled(NullEngine):
        """Notes the temperatures that it is asked for, and stays greedy."""

        def __init__(self, draft_probs: bool, takes_probs: bool) -> None:
            super().__init__()
            self.info = msgspec.structs.replace(self.info, draft_probs=draft_probs, takes_probs=takes_probs)

        async def open(
            self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()
        ) -> NullSession:
            seen.append(sampling.temperature)
            return await super().open(prompt, msgspec.structs.replace(sampling, temperature=0.0), log)

    wanted = Job(7, PROMPT, Sampling(max_tokens=20, temperature=0.7))
    engines: dict[str, Engine] = {"target": Sampled(False, taken), "drafter": Sampled(given_, False)}
    log, _, _ = await answer(SpeculativeMode, engines, wanted)
    assert log.ids == reference(PROMPT, 20)
    assert seen == [0.7, 0.7 if taken and given_ else 0.0]


@pytest.mark.parametrize(
    ("name", "local", "private", "afar", "device"),
    [
        ("cloud", False, False, True, None),
        ("device", True, False, True, "device"),
        ("speculative", False, False, True, "device"),
        ("race", True, False, False, "device"),
        ("split", True, True, True, None),
        ("sketch", False, False, False, None),
    ],
)
def test_who_can_drive_a_mode(name: str, local: bool, private: bool, afar: bool, device: str | None) -> None:
    mode = MODES[name]
    assert (mode.local, mode.private, mode.afar) == (local, private, afar)
    role = mode.device_role()
    assert (role and role.name) == device
    assert (name in AT_FRONT_DOORS) is not private
    assert (name in AT_DEVICES) is (afar or device is not None)


def test_an_endpoint_is_needed_unless_its_role_says_otherwise() -> None:
    assert EndpointRole("target", "verifier") == EndpointRole("target", "verifier", True, "", False, "", "")
    needs = {
        mode.name: [role.name for role in mode.roles if role.needed and not role.unless]
        for mode in MODES.values()
    }
    assert needs["race"] == ["server", "device"]
    assert needs["speculative"] == ["target"]
    expendable = {mode.name: [role.name for role in mode.roles if role.expendable] for mode in MODES.values()}
    assert expendable == {
        "cloud": [],
        "device": [],
        "speculative": ["device", "drafter"],
        "race": ["device"],
        "split": [],
        "sketch": ["drafter"],
    }
