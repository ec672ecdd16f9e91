"""Hand-over as fault tolerance: whatever is killed, cut off or drained under 32 answers, they complete as they should.

The endpoints are processes, reached over the wire: two verifiers, the cloud's own drafter and a device. Time limits are
those of production.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from tandem.deployments.modes.race.mode import Racing
from tandem.deployments.pools.engines import TorchSettings
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.split.base import OuterEngine
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.split import bundle
from tandem.engine.torch.split.runner import load_outer
from tandem.policies.reader.stall_timeout import PROBE_S, QUIET_S
from tandem.training.family.prompts import heldout_questions
from tests.deployments.fleet import PHONE, STREAMS, TOKENS, Answer, Fleet, Prompts, World
from tests.deployments.processes import DRAIN_S, LAYERS
from tests.deployments.relay import relay_to
from tests.engine.torch.split_parts import write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.alone]

Ids = Sequence[Sequence[int]]
Outer = Callable[[str], OuterEngine | None]
Report = Callable[[str, object], None]

RECOVERY_S = 5.0  # to reach, open and prefill elsewhere, while all do


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.end()


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    tokenizer = Tokenizer.load(family.path("target"))
    questions = heldout_questions(STREAMS, seed=11)
    return [tuple(tokenizer.render_chat([{"role": "user", "content": q}])) for q in questions]


@pytest.fixture(scope="module")
def expected(fleet: Fleet, prompts: Prompts) -> Ids:
    """Return the target's undisturbed answers."""

    async def undisturbed() -> list[list[int]]:
        async with World(fleet) as world:
            answers = await world.answers("cloud", prompts)
        assert not any(answer.moved for answer in answers)
        return [answer.ids for answer in answers]

    return asyncio.run(undisturbed())


@pytest.fixture
async def outer(tmp_path: Path) -> AsyncIterator[Outer]:
    """Makes the target's outer part for a mode that needs it, with a drafter that was not trained."""
    loaded: list[OuterEngine] = []

    def load(mode: str) -> OuterEngine | None:
        if mode != "split":
            return None
        target = family.path("target")
        adapter = write_adapter(target, tmp_path / "adapter.safetensors", 0.0)
        bundle.write(target, LAYERS, tmp_path / "bundle", adapter)
        loaded.append(load_outer(tmp_path / "bundle", TorchSettings(), threads=1))
        return loaded[0]

    yield load
    for engine in loaded:
        assert (await engine.stats()).sessions == 0
        await engine.close()


async def check(
    world: World,
    answers: Sequence[Answer],
    expected: Ids,
    report: Report,
    limit_s: float = RECOVERY_S,
) -> float:
    """The answers are whole and as they should be, and some had to move; returns the longest gap between two tokens
    of one, at most `limit_s` seconds."""
    for answer in answers:
        assert answer.finish in ("stop", "length")
        assert len(answer.ids) == answer.stats.tokens == sum(answer.stats.by_origin.values())
    if {Origin.DEVICE} & {origin for answer in answers for origin in answer.origins}:
        await check_each_run(world, answers)
    else:
        assert [answer.ids for answer in answers] == expected
    moved = [answer for answer in answers if answer.moved]
    assert moved, "the fault hit somebody"
    longest_s = max(answer.longest_gap_s for answer in answers)
    report("moved", len(moved))
    report("longest_gap_s", round(longest_s, 3))
    print(f"{len(moved)} moved, longest gap {longest_s:.3f} s")
    assert longest_s <= limit_s
    return longest_s


async def check_each_run(world: World, answers: Sequence[Answer]) -> None:
    """Check each run of one endpoint's tokens: after the prompt and what came before, its model gives them again."""
    models = {Origin.CLOUD: await world.engine("verifier-1"), Origin.DEVICE: await world.engine("drafter-0")}

    async def check_run(answer: Answer, origin: Origin, begin: int, end: int) -> None:
        run = answer.ids[begin:end]
        session = await models[origin].open(answer.prompt, Sampling(max_tokens=TOKENS), answer.ids[:begin])
        verdict = await session.verify(run)
        assert verdict.ids[: len(run)] == run
        await session.cancel()

    runs = [(answer, *run) for answer in answers for run in answer.runs()]
    await asyncio.gather(*(check_run(*run) for run in runs))


async def check_nothing_is_open(world: World, fleet: Fleet, cut: str | None = None) -> None:
    """Check that the endpoints that live have no open session. One that was cut off may still be learning of it."""
    for name in fleet.alive():
        engine = await world.engine(name)
        async with asyncio.timeout(5.0):
            while (sessions := (await engine.stats()).sessions) and name == cut:
                pass
        assert sessions == 0, name


VICTIMS = [
    ("cloud", "verifier-0"),
    ("fused", "verifier-0"),
    ("fused", "drafter-0"),
    ("distributed", "verifier-0"),
    ("distributed", PHONE),
    ("device", PHONE),
    ("race", "verifier-0"),
    ("race", PHONE),
    ("split", "middle-0"),
]
DRAINED = [(mode, victim) for mode, victim in VICTIMS if victim in ("verifier-0", "middle-0")]
LINKS = [
    ("cloud", "verifier-0"),
    ("fused", "verifier-0"),
    ("split", "middle-0"),
    *((m, v) for m, v in VICTIMS if v == PHONE),
]


def faults(pairs: Sequence[tuple[str, str]], always: Collection[tuple[str, str]]) -> pytest.MarkDecorator:
    """Cases of a mode and its victim; those not in `always` run at night, since chaos has them in virtual time."""
    cases = [pytest.param(*pair, marks=() if pair in always else pytest.mark.nightly) for pair in pairs]
    return pytest.mark.parametrize(("mode", "victim"), cases)


@faults(
    VICTIMS,
    {
        ("fused", "drafter-0"),
        ("race", PHONE),
        ("split", "middle-0"),
    },
)
async def test_a_process_is_killed(
    fleet: Fleet,
    prompts: Prompts,
    expected: Ids,
    outer: Outer,
    record_property: Report,
    mode: str,
    victim: str,
) -> None:
    process = fleet[victim]
    async with World(fleet, outer=outer(mode)) as world:
        answers = await world.answers(mode, prompts, [process.kill])
        assert process.exit_code() == -9
        await check(world, answers, expected, record_property)
        if (mode, victim) == ("race", PHONE):
            assert any(Racing.of(answer.stats).migrations_failed for answer in answers), (
                "whoever goes there comes back"
            )
        await check_nothing_is_open(world, fleet)


async def test_the_device_is_killed_and_then_who_took_over(
    fleet: Fleet, prompts: Prompts, expected: Ids, record_property: Report
) -> None:
    phone, verifier = fleet[PHONE], fleet["verifier-0"]
    async with World(fleet) as world:
        answers = await world.answers("device", prompts, [phone.kill, verifier.kill])
        assert (phone.exit_code(), verifier.exit_code()) == (-9, -9)
        assert any(answer.stats.replans >= 2 for answer in answers)
        await check(world, answers, expected, record_property)
        await check_nothing_is_open(world, fleet)


async def test_both_rivals_of_a_race_are_lost(
    fleet: Fleet, prompts: Prompts, expected: Ids, record_property: Report
) -> None:
    """A link that was cut without notice costs the time of a probe; nobody waits for it, or goes there, again."""
    phone = fleet[PHONE]
    async with relay_to(fleet["verifier-0"].address) as link, World(fleet, {"verifier-0": link}) as world:

        def lose_both() -> None:
            link.silence()
            phone.kill()

        answers = await world.answers("race", prompts, [lose_both])
        assert (phone.exit_code(), link.cuts) == (-9, 1)
        assert any(answer.stats.replans for answer in answers)
        await check(world, answers, expected, record_property, QUIET_S + PROBE_S + RECOVERY_S)
        await link.close()
        await check_nothing_is_open(world, fleet, cut="verifier-0")


@faults(DRAINED, {("cloud", "verifier-0")})
async def test_a_replica_is_drained(
    fleet: Fleet,
    prompts: Prompts,
    expected: Ids,
    outer: Outer,
    record_property: Report,
    mode: str,
    victim: str,
) -> None:
    """The drain is shorter than the answers, so they must move."""
    process = fleet[victim]
    async with World(fleet, outer=outer(mode)) as world:
        answers = await world.answers(mode, prompts, [process.drain])
        assert process.exit_code() == 0
        await check(world, answers, expected, record_property, DRAIN_S + RECOVERY_S)
        await check_nothing_is_open(world, fleet)


@faults(LINKS, {("distributed", PHONE), ("split", "middle-0")})
@pytest.mark.parametrize("silent", [False, True], ids=["reset", "silent"])
async def test_a_link_is_cut(
    fleet: Fleet,
    prompts: Prompts,
    expected: Ids,
    outer: Outer,
    record_property: Report,
    mode: str,
    victim: str,
    silent: bool,
) -> None:
    async with relay_to(fleet[victim].address) as link, World(fleet, {victim: link}, outer(mode)) as world:
        answers = await world.answers(mode, prompts, [link.silence if silent else link.reset])
        assert link.cuts == 1
        assert (link.swallowed > 0) == silent
        limit_s = RECOVERY_S + (QUIET_S + PROBE_S if silent else 0.0)
        longest_s = await check(world, answers, expected, record_property, limit_s)
        if silent and mode != "race":  # which goes on elsewhere as soon as one rival is late
            assert longest_s >= QUIET_S, "only the pace of the answers could tell"
        await link.close()
        await check_nothing_is_open(world, fleet, cut=victim)
