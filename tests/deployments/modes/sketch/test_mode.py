"""Mode sketch on the embedded family: whole answers in the sketch's order, whatever is written and whoever is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import msgspec
import pytest

from tandem.deployments.modes.base import Services
from tandem.deployments.modes.sketch import mode as mode_module
from tandem.deployments.modes.sketch.expansion import expanding_devices
from tandem.deployments.modes.sketch.mode import Sketched, cut
from tandem.deployments.modes.sketch.questions import PlaceReport
from tandem.deployments.modes.sketch.scheduler import Expansions
from tandem.deployments.modes.sketch.settings import SketchingChoice, SketchOptions, SketchSettings
from tandem.deployments.request.job import Delta, Job, JobStats
from tandem.deployments.request.timeouts import Limits
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.base import Engine, Grammar, Sampling, Session, Tokens
from tandem.engine.config import EngineConfig
from tandem.engine.sketch.base import Extent, Question
from tandem.engine.sketch.marked import MarkedFormat
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.engine import load
from tandem.policies.speculation.window import StaticWindow
from tandem.training.family import prompts
from tests.deployments.faults import Failing, World, with_window
from tests.effort import slow_after

TEXT = Tokenizer.load(family.path("target"))
ASKED = "Tell me about the town of Marworth."
GREEDY = Sampling(max_tokens=300)
EAGER = SketchSettings(sketching={"name": "always", "parameters": {"shortest": 20}}, within=0.0)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """Folders of the models."""
    return {name: family.path(name) for name in ("target", "small")}


@pytest.fixture
async def target(models: dict[str, Any]) -> AsyncIterator[Engine]:
    engine = load(models["target"], EngineConfig(kv_blocks=256), threads=1)
    yield engine
    await engine.close()


@pytest.fixture
async def small(models: dict[str, Any]) -> AsyncIterator[Engine]:
    engine = load(models["small"], EngineConfig(kv_blocks=256), threads=1)
    yield engine
    await engine.close()


class Saying:
    """An engine that says something else of its own where asked for a sketch, or for a sentence.

    after: the mark that such prompts end with.
    says: text, to a prompt.
    fired: how often it was said.
    """

    def __init__(self, engine: Engine, after: str, says: Callable[[Sequence[int]], str]) -> None:
        self.engine, self.info = engine, engine.info
        self.fired = 0
        self._mark, self._says = TEXT.special_id(after), says

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        session = await self.engine.open(prompt, sampling, log)
        if prompt[-1] != self._mark:
            return session
        text, self.fired = self._says(prompt), self.fired + 1
        return _Saying(session, TEXT.encode(text), sampling)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass
class _Saying:
    session: Session
    ids: list[int]
    sampling: Sampling

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        ids = self.ids[: self.sampling.max_tokens]
        for token in ids[:-1]:
            yield Tokens([token])
        yield Tokens(ids[-1:], "stop" if ids[-1] == TEXT.eos else "length")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


def world(
    target: Engine,
    devices: dict[str, Engine],
    settings: SketchSettings = EAGER,
    others: Sequence[Engine] = (),
    suitable: bool = True,
    format: type[MarkedFormat] = MarkedFormat,
    drafters: Sequence[Engine] = (),
) -> tuple[World, Expansions]:
    """One where the target's speed is known to be slow."""
    settings = settings.model_copy(update={"questions": "all" if suitable else "points"})
    made = World(
        [target, *others],
        drafters=drafters,
        devices=devices,
        limits=Limits(),  # a step takes its time on a busy machine
        services=Services(format=format(TEXT)),
        sketch=settings,
    )
    expansions = made.router.modes["sketch"]
    assert isinstance(expansions, Expansions)
    return made, expansions


def job(asked: str = ASKED, sampling: Sampling = GREEDY, **wishes: Any) -> Job:
    prompt = tuple(TEXT.encode(prompts.answer_prompt(asked)))
    return Job(
        11,
        prompt,
        sampling,
        mode=wishes.pop("mode", "sketch"),
        question=Question(prompt, text=asked),
        **wishes,
    )


async def answer(made: World, wanted: Job) -> tuple[list[int], JobStats, list[Delta]]:
    deltas = [delta async for delta in made.executor.run(wanted)]
    assert [delta.finish is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    stats = deltas[-1].stats
    assert stats is not None
    await made.executor.settled()
    return [token for delta in deltas for token in delta.ids], stats, deltas


def sentences(deltas: Sequence[Delta]) -> list[Delta]:
    """Return those that are whole sentences; the first one comes token by token."""
    return [delta for delta in deltas if set(delta.origins) == {Origin.EXPANSION}]


def figures(stats: JobStats) -> Sketched:
    return Sketched.of(stats)


class Untold(MarkedFormat):
    """A format of models whose stated lengths are not relied on; `extents` has what was asked for."""

    states_length = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.extents: list[Extent | None] = []

    def sketch_form(self, extent: Extent | None) -> None:
        self.extents.append(extent)


async def test_lengths_that_a_target_cannot_tell_are_those_of_its_answers_before(
    target: Engine, small: Engine
) -> None:
    made, _ = world(target, {"a": small}, format=Untold)
    in_full = job(options=(SketchOptions(min_quality=1.0),))
    ids, stats, _ = await answer(made, in_full)
    assert figures(stats).in_full == {"no_device": 1}
    assert stats.used.server_out == len(ids), "nobody was asked for a sketch"
    _, stats, _ = await answer(made, job())
    assert (figures(stats).sketches, figures(stats).expected_tokens) == (1, len(ids))
    format = made._services.format
    assert isinstance(format, Untold)
    (extent,) = format.extents
    assert extent == Extent(int(0.4 * len(ids)), len(ids))


async def test_a_sketch_that_would_be_thrown_away_is_not_asked_for(target: Engine) -> None:
    made, _ = world(target, {}, format=Untold)
    ids, stats, _ = await answer(made, job())
    assert figures(stats).in_full == {"no_device": 1}
    assert stats.used.server_out == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "sketched"), [(Untold, True), (MarkedFormat, False)])
async def test_a_sketch_that_is_too_long_is_thrown_away_only_if_its_model_knows_better(
    target: Engine, small: Engine, format: type[MarkedFormat], sketched: bool
) -> None:
    endless = Saying(target, "<|len|>", lambda _: " 130" + "<|;|> river Jade, town hall" * 40)
    made, _ = world(endless, {"a": small}, format=format)  # type: ignore[arg-type]
    _, stats, _ = await answer(made, job())
    assert endless.fired == 1
    assert figures(stats).in_full == ({} if sketched else {"endless": 1})


async def test_the_target_writes_as_much_as_was_planned(target: Engine, small: Engine) -> None:
    shares = {}
    for share in (0.25, 0.8):
        always = {"name": "always", "parameters": {"shortest": 20, "share": share}}
        settings = EAGER.model_copy(update={"sketching": SketchingChoice(**always)})
        made, _ = world(target, {"a": small}, settings)
        _, stats, deltas = await answer(made, job())
        told = figures(stats)
        assert told.sketches == 1
        assert told.notes - told.openings == len(sentences(deltas))
        shares[share] = stats.used.server_out / told.expected_tokens
        spare = max(0, int(share * told.expected_tokens) - told.tokens)
        assert told.own == spare // (told.expected_tokens // told.notes)
    assert shares[0.25] < 0.5 < 0.65 < shares[0.8] < 0.95


async def test_sentences_come_in_the_sketchs_order_from_small_models(target: Engine, small: Engine) -> None:
    made, expansions = world(target, {"a": small, "b": small})
    ids, stats, deltas = await answer(made, job())
    told = figures(stats)
    assert told.sketches == 1
    assert told.notes - told.openings == len(sentences(deltas)) == told.candidates >= 3
    assert (told.openings, set(stats.by_origin)) == (1, {"cloud", "expansion"})
    opening = [len(delta.ids) for delta in deltas if set(delta.origins) == {Origin.CLOUD}]
    assert len(opening) > 1, "it begins word by word, several at a time where the machine is busy"
    assert sum(opening) == stats.by_origin["cloud"]
    whole, _, _ = await answer(made, job(mode="cloud"))
    facts = [word for word in TEXT.decode(whole).split() if word[0].isupper()]
    shared = sum(fact in TEXT.decode(ids) for fact in facts)
    assert shared > len(facts) / 2, "it tells about the same"
    assert stats.used.server_out < len(whole) / 2
    assert expansions.waiting == 0
    assert not expansions.busy(), "places were given back"


async def test_with_a_drafter_the_target_speculates_and_nothing_else_changes(
    target: Engine, small: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # awc may do without drafts that take long, as on a busy machine
    monkeypatch.setattr(mode_module, "SpeculativeSettings", lambda: with_window(StaticWindow))
    plain, _ = world(target, {"a": small})
    made, expansions = world(target, {"a": small}, drafters=[small])
    learnt: list[object] = []
    expansions.learn = lambda report, taught: learnt.append(taught)  # type: ignore[method-assign]
    ids, stats, _ = await answer(made, job())
    assert figures(stats).sketches == 1
    assert learnt[-1], "what is learnt about the pair reaches the router"
    assert ids == (await answer(plain, job()))[0]
    whole, stats, _ = await answer(made, job(sampling=msgspec.structs.replace(GREEDY, max_tokens=19)))
    assert figures(stats).in_full == {"short": 1}
    assert whole == (await answer(plain, job(mode="cloud")))[0][:19]
    assert stats.by_origin["draft"] > 5


async def test_a_drafter_that_dies_is_done_without(target: Engine, small: Engine) -> None:
    failing = Failing(small, "draft", after=1)
    made, _ = world(target, {"a": small}, drafters=[failing])
    ids, stats, _ = await answer(made, job())
    assert failing.fired
    assert stats.replans == 1
    assert ids == (await answer(world(target, {"a": small})[0], job()))[0]


async def test_places_are_reported_as_they_were(target: Engine, small: Engine) -> None:
    """Whole or not, so that the router learns who is how fast."""
    failing = Failing(small, "generate", after=60)
    made, expansions = world(target, {"a": failing, "b": small})
    reports: list[PlaceReport] = []
    free = expansions.free
    expansions.free = lambda report: (reports.append(report), free(report))[1]  # type: ignore[method-assign]
    await answer(made, job())
    assert failing.fired
    assert [report.lost for report in reports] == [True, False]
    assert all(0 < report.longest <= report.tokens and report.seconds > 0 for report in reports)


@pytest.mark.parametrize(("beyond", "asked"), slow_after(1, [(1, False), (0, True)]))
async def test_short_answers_are_the_targets_own(
    target: Engine, small: Engine, beyond: int, asked: bool
) -> None:
    """The target is not asked for the length of an answer that cannot be long."""
    parameters = {"shortest": GREEDY.max_tokens + beyond}
    made, _ = world(
        target, {"a": small}, SketchSettings(sketching={"name": "always", "parameters": parameters})
    )
    ids, stats, _ = await answer(made, job())
    assert ids == (await answer(made, job(mode="cloud")))[0]
    assert figures(stats).in_full == {"short": 1}
    assert set(stats.by_origin) == {"cloud"}
    assert (stats.used.server_out > len(ids)) == asked


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"logprobs": 0}, "indivisible"),
        pytest.param({"presence_penalty": 1.0}, "indivisible", marks=pytest.mark.slow),
        pytest.param({"ignore_eos": True, "max_tokens": 60}, "indivisible", marks=pytest.mark.slow),
        ({"grammar": Grammar("regex", "[A-Z][a-z ]{1,40}[.]")}, "indivisible"),
    ],
)
async def test_what_concerns_the_whole_answer_needs_one_writer(
    target: Engine, small: Engine, sampling: dict[str, Any], reason: str
) -> None:
    made, _ = world(target, {"a": small})
    wanted = msgspec.structs.replace(GREEDY, **sampling)
    ids, stats, deltas = await answer(made, job(sampling=wanted))
    assert ids == (await answer(made, job(sampling=wanted, mode="cloud")))[0]
    assert figures(stats).in_full == {reason: 1}
    assert (deltas[0].logprobs is not None) == (wanted.logprobs >= 0)


@pytest.mark.slow
async def test_questions_that_cannot_be_sketched_and_models_that_are_not_known(
    target: Engine, small: Engine
) -> None:
    settings = SketchSettings(within=0.0)
    made, _ = world(target, {"a": small}, settings, suitable=False)
    assert figures((await answer(made, job()))[1]).in_full == {"unsuitable": 1}
    made, _ = world(target, {}, settings)
    assert figures((await answer(made, job()))[1]).in_full == {"no_device": 1}
    made, _ = world(target, {"a": small}, settings.model_copy(update={"models": {}}))
    assert figures((await answer(made, job()))[1]).in_full == {"no_device": 1}
    made, _ = world(target, {"a": small}, settings)
    assert figures((await answer(made, job(options=(SketchOptions(min_quality=0.99),))))[1]).in_full == {
        "no_device": 1
    }


async def test_where_no_sketch_can_be_worth_it_nobody_is_asked(
    target: Engine, small: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tandem.deployments.modes.sketch.mode.ASK_AGAIN_S", inf
    )  # however long the answers take here
    made, _ = world(target, {}, SketchSettings())
    opened = [(await target.stats()).opened]
    for wanted in (job(), job(), job(options=(SketchOptions(min_quality=0.5),))):
        assert figures((await answer(made, wanted))[1]).in_full == {"no_device": 1}
        opened.append((await target.stats()).opened)
    assert [after - before for before, after in pairwise(opened)] == [2, 1, 1]


async def test_a_demanding_request_says_nothing_of_others(target: Engine, small: Engine) -> None:
    made, _ = world(target, {"a": small})
    assert figures((await answer(made, job(options=(SketchOptions(min_quality=0.99),))))[1]).in_full == {
        "no_device": 1
    }
    assert figures((await answer(made, job()))[1]).sketches == 1


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("<eos>", "no_list"),
        pytest.param(" 200<eos>", "no_list", marks=pytest.mark.slow),
        pytest.param(" 200<|;|> only one<eos>", "no_list", marks=pytest.mark.slow),
        pytest.param(" nothing like it" * 90, "endless", marks=pytest.mark.slow),
        (" 200" + "<|;|> one more note" * 200, "endless"),
    ],
    ids=["empty", "length_alone", "one_note", "no_note", "notes_without_end"],
)
async def test_a_sketch_of_no_use_costs_no_answer(
    target: Engine, small: Engine, written: str, reason: str
) -> None:
    saying = Saying(target, "<|len|>", lambda _: written)
    made, _ = world(saying, {"a": small})
    ids, stats, _ = await answer(made, job())
    assert saying.fired == 1
    assert figures(stats).in_full == {reason: 1}
    assert ids == (await answer(made, job(mode="cloud")))[0]


def note_of(prompt: Sequence[int]) -> str:
    """Return the note that a prompt asks to expand."""
    begin = list(prompt).index(TEXT.special_id("<|x|>"))
    return TEXT.decode(prompt[begin + 1 : -1])


@pytest.mark.parametrize(
    "says",
    [
        lambda prompt: f" Of{note_of(prompt)} the moon is made.<eos>",
        *slow_after(
            0, [lambda prompt: f"{note_of(prompt)}<eos>", lambda _: "<eos>", lambda _: " word" * 400]
        ),
    ],
    ids=["another thing", "the note again", "nothing", "too much"],
)
async def test_what_an_expansion_got_wrong_the_target_writes(
    target: Engine, small: Engine, says: Callable[[Sequence[int]], str]
) -> None:
    saying = Saying(small, "<|e|>", says)
    made, _ = world(target, {"a": saying})
    ids, stats, deltas = await answer(made, job())
    told = figures(stats)
    assert saying.fired >= told.notes - told.openings
    assert told.rewritten == told.notes - told.openings == len(sentences(deltas))
    assert len(ids) > 40


@pytest.mark.parametrize(
    ("operation", "after"), slow_after(1, [("generate", 30), ("open", 0), ("open", 2), ("generate", 0)])
)
async def test_a_device_that_dies_loses_its_job_to_another(
    target: Engine, small: Engine, operation: str, after: int
) -> None:
    failing = Failing(small, operation, after)
    made, expansions = world(target, {"a": failing, "b": small})
    ids, stats, _ = await answer(made, job())
    undisturbed, _, _ = await answer(world(target, {"b": small})[0], job())
    assert failing.fired
    assert figures(stats).moved == 1
    assert ids == undisturbed
    assert not expansions.busy()


async def test_the_target_finishes_when_nobody_is_left(target: Engine, small: Engine) -> None:
    failing = Failing(small, "generate", after=60)
    made, _ = world(target, {"a": failing})
    ids, stats, deltas = await answer(made, job())
    assert failing.fired
    told = figures(stats)
    assert told.finished == told.moved == 1
    assert {"expansion", "cloud"} == set(stats.by_origin)
    assert deltas[-1].finish == "stop"
    assert ids[-1] == TEXT.eos


@pytest.mark.parametrize("after", slow_after(1, [12, 0, 1, 20]))
async def test_a_target_that_dies_while_it_sketches_is_replaced(
    target: Engine, small: Engine, after: int
) -> None:
    failing = Failing(target, "generate", after)
    made, _ = world(failing, {"a": small}, others=[target])
    first, stats, _ = await answer(made, job())
    second, other, _ = await answer(made, job())  # one of the two began with it
    assert failing.fired
    assert stats.replans + other.replans == 1
    lost = [figures(each).in_full["lost"] for each in (stats, other)]
    assert [figures(stats).sketches, figures(other).sketches] == [1 - each for each in lost]
    if sum(lost):  # with a sentence that was begun: the other target ends it, and goes on
        origins = [each.by_origin for each in (stats, other)]
        assert [set(each) for each in origins if "expansion" not in each] == [{"cloud"}]
        assert first[:3] == second[:3]
        assert first[-1] == second[-1] == TEXT.eos
    else:
        assert first == second


@pytest.mark.parametrize("most", slow_after(1, [17, 1, 60, 100]))
async def test_it_has_no_more_tokens_than_wanted(target: Engine, small: Engine, most: int) -> None:
    made, _ = world(target, {"a": small})
    whole, _, _ = await answer(made, job())
    ids, stats, deltas = await answer(made, job(sampling=Sampling(max_tokens=most)))
    assert len(ids) == stats.tokens <= most
    assert deltas[-1].finish == "length"
    if figures(stats).sketches:
        assert ids == whole[:most]


async def test_stop_tokens_end_the_answer_not_a_sentence(target: Engine, small: Engine) -> None:
    made, _ = world(target, {"a": small})
    whole, _, _ = await answer(made, job())
    stop = whole[len(whole) // 2]
    wanted = msgspec.structs.replace(GREEDY, stop_tokens=(stop,))
    ids, stats, deltas = await answer(made, job(sampling=wanted))
    assert figures(stats).sketches == 1
    assert ids == whole[: whole.index(stop) + 1]
    assert deltas[-1].finish == "stop"


async def test_the_sketch_can_be_seen(target: Engine, small: Engine) -> None:
    made, _ = world(target, {"a": small})
    whole, undisturbed, _ = await answer(made, job())
    ids, stats, _ = await answer(made, job(options=(SketchOptions(show_sketch=True),)))
    shown = stats.by_origin["sketch"]
    lines = TEXT.decode(ids[:shown]).splitlines()
    assert len(lines) == figures(stats).notes + 1
    assert all(line.startswith("- ") for line in lines[:-1])
    others = undisturbed.by_origin[
        "expansion"
    ]  # than the first one, which is not begun before the sketch is there
    assert ids[-others:] == whole[-others:]


@pytest.mark.parametrize("most", slow_after(1, [60, 40, 80]))
async def test_a_sketch_that_is_shown_counts(target: Engine, small: Engine, most: int) -> None:
    made, _ = world(target, {"a": small})
    wanted = job(options=(SketchOptions(show_sketch=True),), sampling=Sampling(max_tokens=most))
    ids, stats, deltas = await answer(made, wanted)
    assert len(ids) == stats.tokens == most
    assert deltas[-1].finish == "length"


async def test_a_shown_sketch_is_no_part_of_what_the_target_goes_on_from(
    target: Engine, small: Engine
) -> None:
    failing = Failing(small, "open")
    made, _ = world(target, {"a": failing})
    ids, stats, _ = await answer(made, job(options=(SketchOptions(show_sketch=True),)))
    assert failing.fired
    assert ids[stats.by_origin["sketch"] :] == (await answer(made, job(mode="cloud")))[0]


async def test_of_several_candidates_each_sentence_has_the_best(target: Engine, small: Engine) -> None:
    poor = Saying(small, "<|e|>", lambda _: " Nobody knows anything at all about any of this.<eos>")
    settings = EAGER.model_copy(update={"candidates": 2})
    made, _ = world(target, {"a": poor, "b": small}, settings)
    ids, stats, _ = await answer(made, job())
    told = figures(stats)
    assert poor.fired >= told.notes - told.openings
    assert told.candidates == 2 * (told.notes - told.openings)
    assert "Nobody knows" not in TEXT.decode(ids)


async def test_a_reader_who_has_nothing_to_read_does_not_wait_for_a_second_opinion(
    target: Engine, small: Engine
) -> None:
    hanging = Hanging(small)
    settings = EAGER.model_copy(update={"candidates": 2})
    made, _ = world(target, {"a": hanging, "b": small}, settings)
    wanted = msgspec.structs.replace(GREEDY, reader_rate=10_000.0)
    _, stats, _ = await answer(made, job(sampling=wanted))
    assert hanging.asked
    told = figures(stats)
    assert told.candidates == told.notes - told.openings


class Hanging:
    """An engine that never says anything."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.info, self.asked = engine, engine.info, 0

    async def open(self, prompt: Sequence[int], sampling: Sampling, log: Sequence[int] = ()) -> Session:
        self.asked += 1
        return _Hanging(await self.engine.open(prompt, sampling, log))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


@dataclass
class _Hanging:
    session: Session

    async def generate(self) -> AsyncGenerator[Tokens, None]:
        await asyncio.get_running_loop().create_future()
        yield Tokens([])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)


@pytest.mark.parametrize(
    ("device", "allowed", "expanding"),
    [
        (None, None, None),
        ("any", ("a",), ("a",)),
        ("b", None, ("b",)),
        (("a", "b"), ("b", "c"), ("b",)),
        ("a", ("b",), ()),
    ],
)
def test_who_may_see_what_is_asked(
    device: str | tuple[str, ...] | None, allowed: tuple[str, ...] | None, expanding: tuple[str, ...] | None
) -> None:
    assert expanding_devices(job(device=device, devices=allowed)) == expanding


async def test_only_the_devices_that_the_client_names_are_asked(target: Engine, small: Engine) -> None:
    poor = Saying(small, "<|e|>", lambda _: " Nobody asked me.<eos>")
    made, _ = world(target, {"a": poor, "b": small})
    ids, stats, _ = await answer(made, job(device="b"))
    assert figures(stats).sketches == 1
    assert poor.fired == 0
    assert (await answer(made, job()))[0] != ids
    assert poor.fired


@pytest.mark.parametrize(
    ("ids", "sent", "kept", "finish"),
    [
        ([1, 2, 3], 0, [1, 2, 3], None),
        ([1, 2, 0], 0, [1, 2, 0], "stop"),
        ([1, 2, 0], 7, [1, 2, 0], "stop"),
        ([1, 2, 0], 8, [1, 2], "length"),
        ([1, 2, 3], 7, [1, 2, 3], "length"),
        ([1, 2, 3], 9, [1], "length"),
        ([1, 9, 3], 0, [1, 9], "stop"),
        ([1, 9, 3], 9, [1], "length"),
    ],
)
def test_cutting(ids: list[int], sent: int, kept: list[int], finish: str | None) -> None:
    assert cut(ids, 0, Sampling(max_tokens=10, stop_tokens=(9,)), sent) == (kept, finish)
