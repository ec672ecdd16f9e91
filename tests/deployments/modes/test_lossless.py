"""Speculation is lossless: greedy answers of the real pair over the wire, and the distribution of sampled ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.devices.device import Device
from tandem.cluster.devices.profile import load_profile
from tandem.cluster.devices.record import DeviceRecord
from tandem.cluster.link.link import Link, LinkProfile
from tandem.cluster.wire.client import connect
from tandem.cluster.wire.listener import serve_engines
from tandem.deployments.modes.executor import Executor
from tandem.deployments.modes.speculative.mode import Speculation, SpeculativeMode
from tandem.deployments.pools.engines import TorchSettings, build_engine
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job, JobStats
from tandem.deployments.request.session import Reach
from tandem.deployments.routing.assigner import Assigner
from tandem.deployments.routing.directory import Snapshot
from tandem.deployments.routing.routing import Routing
from tandem.engine import family
from tandem.engine.base import Drafts, Engine, Sampling
from tandem.engine.core.engine import CoreEngine
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.torch.sampling import adjust, distributions
from tandem.engine.translated.engine import Translated
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing
from tandem.policies.speculation.window import StaticWindow, WindowPolicy
from tandem.training.family.prompts import heldout_questions
from tests import model_contract
from tests.deployments.faults import Script, with_window
from tests.deployments.modes.test_modes import answer
from tests.effort import slow_after, tried
from tests.engine.torch import tiny_weights
from tests.engine.torch.engines import Engines
from tests.engine.translated.test_contract import toy_tokenizers

PROMPTS = 200
AT_ONCE = 32
PHONE = DeviceRecord(name="phone", address="", profile="native", model="small", vocabulary="v")


@asynccontextmanager
async def _pair(device_model: str = "small") -> AsyncIterator[dict[str, Engine]]:
    """The pair, as local engines behind a real connection; the device has a link of 2 ms."""
    target = build_engine(TorchSettings(model="target", threads=2, max_waiting=PROMPTS))
    small = build_engine(TorchSettings(model="small", threads=1, max_waiting=PROMPTS))
    own = small if device_model == "small" else build_engine(TorchSettings(model=device_model, threads=1))
    device = Device(own, msgspec.structs.replace(load_profile("native"), sessions=PROMPTS))
    served: dict[str, Engine] = {"verifier": target, "drafter": small, "phone": device}
    async with serve_engines(served) as endpoint:
        connection = await connect(endpoint.address)
        phone: Engine = connection.engine("phone", Link(LinkProfile(rtt_s=0.002)))
        here, there = (Tokenizer.load(family.path(name)) for name in ("target", device_model))
        if here.vocabulary != there.vocabulary:
            phone = Translated(phone, here, there)
        yield {
            "verifier": connection.engine("verifier"),
            "drafter": connection.engine("drafter"),
            "phone": phone,
        }
        await connection.close()
    for engine in {id(e): e for e in (target, small, own)}.values():
        await engine.close()


@pytest.fixture
async def engines() -> AsyncIterator[dict[str, Engine]]:
    async with _pair() as engines:
        yield engines


CLOUD, FUSED, DISTRIBUTED = (
    {"mode": "cloud"},
    {"mode": "speculative"},
    {"mode": "speculative", "device": "phone"},
)


async def _answers(
    engines: Mapping[str, Engine],
    wishes: Mapping[str, str],
    window: Callable[[], WindowPolicy] = StaticWindow,
    prompts: int = PROMPTS,
) -> list[tuple[tuple[int, ...], JobStats]]:
    pools = {
        pool: (EndpointInfo(pool, "", pool, vocabulary="v"),)
        for pool in ("verifier", "drafter")
        if pool in engines
    }
    router = Routing(Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 64))
    router.see(Snapshot(1, pools, {PHONE.name: PHONE}))

    async def dial(endpoint: EndpointInfo) -> Engine:
        return engines[endpoint.engine]

    executor = Executor(router.assign, Reach(dial), {"speculative": with_window(window)}, report=router.learn)
    tokenizer = Tokenizer.load(family.path("target"))
    room = asyncio.Semaphore(AT_ONCE)

    async def answer(number: int, question: str) -> tuple[tuple[int, ...], JobStats]:
        prompt = tokenizer.render_chat([{"role": "user", "content": question}])
        job = Job(number + 1, tuple(prompt), Sampling(max_tokens=120), **wishes)
        ids: list[int] = []
        async with room:
            async for delta in executor.run(job):
                ids += delta.ids
                stats = delta.stats
        await executor.settled()
        assert stats is not None
        assert (stats.replans, stats.mode) == (0, wishes["mode"])
        return tuple(ids), stats

    questions = heldout_questions(prompts, seed=11)
    return await asyncio.gather(*(answer(n, question) for n, question in enumerate(questions)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("prompts", [8, pytest.param(PROMPTS, marks=pytest.mark.nightly)])
async def test_speculative_output_is_the_targets_own(engines: dict[str, Engine], prompts: int) -> None:
    cloud = [ids for ids, _ in await _answers(engines, CLOUD, prompts=prompts)]
    for wishes, size in ((FUSED, 4), (DISTRIBUTED, 6)):
        answers = await _answers(engines, wishes, lambda size=size: StaticWindow(size), prompts)
        assert [ids for ids, _ in answers] == cloud
        seen = [Speculation.of(stats) for _, stats in answers]
        assert sum(s.rounds for s in seen) > 0
        assert sum(s.accepted for s in seen) > 0, "nothing was accepted: the test would prove little"
        assert sum(s.accepted for s in seen) < sum(s.drafted for s in seen)


@pytest.mark.timeout(300)
async def test_a_device_of_another_vocabulary_drafts_losslessly() -> None:
    async with _pair("other") as engines:
        prompts = tried(4, 12)
        cloud = [ids for ids, _ in await _answers(engines, CLOUD, prompts=prompts)]
        answers = await _answers(engines, DISTRIBUTED, lambda: StaticWindow(5), prompts)
    assert [ids for ids, _ in answers] == cloud
    seen = [Speculation.of(stats) for _, stats in answers]
    assert 0 < sum(s.accepted for s in seen) < sum(s.drafted for s in seen)
    assert sum(s.fused_rounds for s in seen) == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fused", slow_after(1, [True, False]), ids=["cloud-drafter", "target-alone"])
def test_switching_in_mid_answer_loses_nothing(fused: bool) -> None:
    """Use any windows. Concurrent answers take them in turn, so each has a sequence of its own."""
    prompts = 6
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        engines = runner.run(stack.enter_async_context(_pair()))
        if not fused:
            del engines["drafter"]
        try:
            cloud = [ids for ids, _ in runner.run(_answers(engines, CLOUD, prompts=prompts))]
            switches = accepted = 0

            @settings(max_examples=settings.default.max_examples // 10)
            @given(windows=st.lists(st.sampled_from([0, 1]) | st.integers(1, 12), min_size=1, max_size=12))
            def unchanged(windows: list[int]) -> None:
                nonlocal switches, accepted
                answers = runner.run(_answers(engines, DISTRIBUTED, lambda: Script(windows), prompts))
                assert [ids for ids, _ in answers] == cloud
                switches += sum(Speculation.of(stats).switches for _, stats in answers)
                accepted += sum(Speculation.of(stats).accepted for _, stats in answers)

            unchanged()
        finally:
            runner.run(stack.aclose())
    assert switches > 0
    assert accepted > 0


class Untold:
    """The Engine protocol over a target that takes no draft probabilities, as vLLM's."""

    def __init__(self, engine: Engine) -> None:
        self.info = msgspec.structs.replace(engine.info, takes_probs=False)
        self.open, self.stats, self.close = engine.open, engine.stats, engine.close


async def test_greedy_drafts_leave_the_targets_distribution_as_it_is(tmp_path: Path) -> None:
    """And are accepted as often as the target gives the drafter's likeliest token."""
    tiny, answers = Engines(tmp_path), 320
    target = tiny.start(seed=1, max_waiting=answers)
    drafter = tiny.start(seed=1, noise=0.08, max_waiting=answers)
    seen = await _sampled({"target": Untold(target), "drafter": drafter}, tiny, answers, StaticWindow(1))
    await tiny.close()
    first, tokens = _probs(tiny, 0), range(tiny_weights.VOCAB)
    likeliest = sum(float(first[a] * _probs(tiny, 0, a)[_probs(tiny, 1, a).argmax()]) for a in tokens)
    assert sum(s.drafted for s in seen) == answers
    margin = 3 * (0.25 / answers) ** 0.5
    assert sum(s.accepted for s in seen) / answers == pytest.approx(likeliest, abs=margin)


@pytest.mark.timeout(300)
def test_drafts_between_any_two_vocabularies_lose_nothing(tmp_path: Path) -> None:
    """Two models that say the same characters in tokens of their own, greedy and sampled; sampled drafts come with
    their distributions."""
    tiny, answers = Engines(tmp_path), 320
    accepted = rejected = compared = 0
    stated = Counter[bool]()

    class Noted(Translated):
        def drafts(self, theirs: Drafts) -> Drafts:
            ours = super().drafts(theirs)
            stated[ours.probs is not None] += 1
            return ours

    with asyncio.Runner() as runner:

        async def start() -> list[CoreEngine]:
            return [tiny.start(seed=1, noise=noise, max_waiting=answers) for noise in (0.0, 0.08)]

        target, drafter = runner.run(start())

        @settings(max_examples=settings.default.max_examples // 10)
        @given(toy_tokenizers(tiny_weights.VOCAB), toy_tokenizers(tiny_weights.VOCAB), st.integers(1, 5))
        def lossless(here: Tokenizer, there: Tokenizer, window: int) -> None:
            nonlocal accepted, rejected, compared
            engines: dict[str, Engine] = {"target": target, "drafter": Noted(drafter, here, there)}
            seen = runner.run(_sampled(engines, tiny, answers, StaticWindow(window)))
            greedy = Job(1, TOY_PROMPT, Sampling(max_tokens=12))
            wanted, ends = tiny.greedy([*TOY_PROMPT], greedy.sampling)
            if len(here.shown_bytes(wanted)) < FITTING_BYTES:
                log, finish, _ = runner.run(answer(SpeculativeMode, engines, greedy, StaticWindow(window)))
                assert (log.ids, finish) == (wanted, ends)
                compared += 1
            accepted += sum(s.accepted for s in seen)
            rejected += sum(s.drafted - s.accepted for s in seen)

        try:
            lossless()
        finally:
            runner.run(tiny.close())
    assert accepted > 0
    assert rejected > 0
    assert compared > 0
    assert stated[True] > answers


@pytest.mark.parametrize("stated", [False, True])
async def test_lookups_beside_a_drafters_drafts_leave_the_distribution_as_it_is(
    stated: bool, tmp_path: Path
) -> None:
    """Drafts with their distributions are followed by lookups; drafts without are also replaced by them."""
    tiny, answers = Engines(tmp_path), 320
    target = tiny.start(seed=1, max_waiting=answers, lookup=6)
    target._core._small_steps.step_s = lambda tokens: 1.0  # lookups cost nothing
    drafter = tiny.start(seed=1, noise=0.08, max_waiting=answers)
    there = target if stated else Untold(target)
    seen = await _sampled({"target": there, "drafter": drafter}, tiny, answers, StaticWindow(1))
    assert 0 < sum(s.accepted for s in seen) < sum(s.drafted for s in seen)
    assert target.counters.tokens_looked_up > 100
    assert target.counters.tokens_found > 0
    await tiny.close()


async def test_biases_and_least_probabilities_are_part_of_the_targets_distribution(tmp_path: Path) -> None:
    """A drafter knows them, too, but is unlike the target."""
    tiny, answers = Engines(tmp_path), 320
    target = tiny.start(seed=1, max_waiting=answers)
    drafter = tiny.start(seed=1, noise=0.08, max_waiting=answers)
    first = int(_probs(tiny, 0).argmax())
    sampling = Sampling(
        max_tokens=3,
        temperature=HOT,
        min_p=0.2,
        min_tokens=2,
        stop_tokens=(first,),
        logit_bias=((20, 3.0), (21, 3.0), (22, 2.0), (23, -100.0)),
    )
    engines: dict[str, Engine] = {"target": target, "drafter": drafter}
    seen = await _sampled(engines, tiny, answers, StaticWindow(1), sampling)
    assert 0 < sum(s.accepted for s in seen) < sum(s.drafted for s in seen)
    await tiny.close()


TOY_PROMPT, HOT = (20, 21, 22) * 3, 2.0
SAMPLED = Sampling(max_tokens=3, temperature=HOT, ignore_eos=True)
FITTING_BYTES = 96
"""Bytes of an output that fits a tiny drafter's context, were each of them a token."""


async def _sampled(
    engines: dict[str, Engine],
    tiny: Engines,
    answers: int,
    window: WindowPolicy,
    sampling: Sampling = SAMPLED,
) -> list[Speculation]:
    """Return the figures of so many answers, whose first two tokens must have the target's distribution."""
    jobs = [Job(n, TOY_PROMPT, msgspec.structs.replace(sampling, seed=n)) for n in range(answers)]
    done = await asyncio.gather(*(answer(SpeculativeMode, engines, job, window) for job in jobs))
    first, tokens = _probs(tiny, 0, sampling=sampling), range(tiny_weights.VOCAB)
    after = [_probs(tiny, 0, token, sampling=sampling) for token in tokens]
    pairs = {(a, b): float((first[a] * after[a][b]).log()) for a in tokens for b in tokens}
    model_contract.check_frequencies(Counter((log.ids[0], log.ids[1]) for log, _, _ in done), pairs)
    return [Speculation.of(stats) for _, _, stats in done]


def _probs(tiny: Engines, model: int, *output: int, sampling: Sampling = SAMPLED) -> torch.Tensor:
    """Return the probabilities of the token after the output."""
    logits, ends = tiny.models[model].logits((*TOY_PROMPT, *output))[None], [*sampling.stop_tokens]
    if not sampling.ignore_eos:
        ends.append(tiny_weights.EOS)
    return distributions(adjust(logits, [sampling], lambda _: (TOY_PROMPT, output), [ends]), [sampling])[0]
