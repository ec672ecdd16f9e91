"""PICE's answers beside the cloud's and the small models' own, on the embedded family.

    tandem benchmark pice_quality [--questions 210] [--expanders tiny small …]

Questions of every kind in phrasings that the family was never trained on: facts and sums have short answers, the
others long ones. Cloud-only: mode `cloud`. Edge-only: a small model alone. PICE: mode `sketch` with one device, or with
two, whose expansions compete (the ensemble). Routing, PICE's baseline: short answers from the edge, long ones from the
cloud; it is told how long an answer is, which is unknown in practice. All answers are greedy but an ensemble's second
ones.

Which models expand, who is alone at the edge, and what is too long for routing is chosen on questions of another seed:
what states the most facts (routing: with no more of the target's tokens than PICE). Facts: the share of those asked for
that the answers state; complete: the share of answers that state all of them.

PICE sketches all answers of 100 tokens or more here. "As decided" leaves those to the cloud whose questions
`policies.sketch.suitability` refuses by their wording. It was made for real questions; of these it knows few.

pice_over_cloud, pice_minus_edge: facts that PICE's answers state, by ratio and difference; the ensemble's.
ensemble_gain, ensemble_gain_error: beside PICE with one candidate, and half the 95 % interval of that, from resampling
questions. llm_token_share: tokens that the target writes, in relation to cloud-only, where there is a sketch;
llm_token_share_overall: on all questions. should_sketch_f1: of the rule by wording, on 80 questions with human labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from tandem.benchmarks import report
from tandem.benchmarks.pice import decision
from tandem.benchmarks.pice.embedded import EXPANDERS, TEXT, Answer, Models, ask
from tandem.benchmarks.scores import Scores
from tandem.deployments.modes.sketch.settings import ExpandingModel, SketchingChoice, SketchSettings
from tandem.policies.routing.collaboration import CollaborationState, DevicePart, DeviceView
from tandem.policies.routing.difficulty import ByDifficulty
from tandem.policies.sketch.suitability import sketchable
from tandem.training.family.encyclopedia.items import TASK_KINDS, Item
from tandem.training.family.prompts import heldout

AT_ONCE = 8  # questions
RESAMPLES = 2000
Answers = list[Answer]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to answer.

    mode: that the question asks for.
    models: of the devices that are there; their expansions compete.
    """

    mode: str
    models: tuple[str, ...] = ()

    @property
    def settings(self) -> SketchSettings:
        """Long answers are always sketched; the first model is preferred."""
        return SketchSettings(
            sketching=SketchingChoice(name="always"),
            models={
                name: ExpandingModel(capability=1 / (1 + n))
                for n, name in enumerate(dict.fromkeys(self.models))
            },
            candidates=len(self.models) or 1,
            wait_s=60.0,
        )


CLOUD = Way("cloud")


async def answers(models: Models, way: Way, items: Sequence[Item]) -> Answers:
    """Answer these questions, some at once, each with devices of its own."""
    found: dict[int, Answer] = {}
    left = iter(list(enumerate(items)))

    async def answer_some() -> None:
        executor = models.executor(way.models, way.settings)
        device = "0" if way.mode == "device" else None
        for number, item in left:
            found[number] = Answer.of([delta async for delta in executor.run(ask(item, way.mode, device))])
        await executor.settled()

    await asyncio.gather(*(answer_some() for _ in range(AT_ONCE)))
    return [found[number] for number in range(len(items))]


@dataclass(frozen=True, slots=True)
class Graded:
    """A way's answers with their scores."""

    answers: Answers
    scores: Scores

    @classmethod
    def of(cls, items: Sequence[Item], answers: Answers) -> Graded:
        return cls(answers, Scores.of(items, [answer.text for answer in answers]))

    @property
    def facts(self) -> float:
        return float(self.scores.stated.sum() / self.scores.asked.sum())

    @property
    def rouge(self) -> float:
        return float(self.scores.rouge.mean())

    @property
    def complete(self) -> float:
        return float((self.scores.stated == self.scores.asked).mean())

    @property
    def llm_tokens(self) -> float:
        """Mean tokens of the target per answer."""
        return mean(answer.llm_tokens for answer in self.answers)

    @property
    def sketched(self) -> float:
        """Share of the answers."""
        return mean(answer.sketched for answer in self.answers)


def routed(items: Sequence[Item], longest: int, edge: Answers, cloud: Answers) -> Answers:
    """Return the answers as the router by difficulty distributes the questions."""
    policy, device = ByDifficulty(longest), DeviceView("0", rtt_s=0.0, sessions=0)
    modes = {"cloud": DevicePart.NEVER, "device": DevicePart.MUST}
    chosen = [
        policy.choose(CollaborationState(None, None, modes, lambda _: device, max_tokens=length(item))).mode
        for item in items
    ]
    return [e if mode == "device" else c for mode, e, c in zip(chosen, edge, cloud, strict=True)]


def as_decided(items: Sequence[Item], pice: Answers, cloud: Answers) -> Answers:
    """The cloud's where the rule by wording is against a sketch."""
    return [p if sketchable(item.question) else c for item, p, c in zip(items, pice, cloud, strict=True)]


def length(item: Item) -> int:
    """Tokens of the true answer."""
    return len(TEXT.encode(f" {item.answer}"))


@dataclass(frozen=True, slots=True)
class Chosen:
    """edge: who is there alone.
    single, ensemble: PICE with one candidate, and with a second one beside it, of the same model or of another.
    longest: of answers that routing leaves to the edge, tokens.
    """

    edge: Way
    single: Way
    ensemble: Way
    longest: int


async def choose(models: Models, expanders: Sequence[str], items: Sequence[Item]) -> Chosen:
    """Choose what states the most facts in the answers to these questions."""
    graded = {CLOUD: Graded.of(items, await answers(models, CLOUD, items))}

    async def best(mode: str, devices: Sequence[tuple[str, ...]]) -> Way:
        ways = [Way(mode, names) for names in devices]
        for way in report.progress(ways, "choosing"):
            graded[way] = Graded.of(items, await answers(models, way, items))
        return max(ways, key=lambda way: graded[way].facts)

    edge = await best("device", [(name,) for name in expanders])
    single = await best("sketch", [(name,) for name in expanders])
    ensemble = await best("sketch", [(*single.models, name) for name in expanders])
    most = graded[ensemble].llm_tokens
    routes = {
        longest: Graded.of(items, routed(items, longest, graded[edge].answers, graded[CLOUD].answers))
        for longest in {0, *map(length, items)}
    }
    longest = max(routes, key=lambda n: (routes[n].llm_tokens <= most, routes[n].facts))
    return Chosen(edge, single, ensemble, longest)


async def judge(models: Models, chosen: Chosen, items: Sequence[Item]) -> dict[str, Graded]:
    """Everybody's answers to these questions."""
    ways = {"cloud": CLOUD, "edge": chosen.edge, "single": chosen.single, "ensemble": chosen.ensemble}
    given = {
        name: await answers(models, way, items) for name, way in report.progress(ways.items(), "judging")
    }
    given["routing"] = routed(items, chosen.longest, given["edge"], given["cloud"])
    given["as decided"] = as_decided(items, given["ensemble"], given["cloud"])
    return {name: Graded.of(items, found) for name, found in given.items()}


def difference(ours: Scores, theirs: Scores, seed: int) -> tuple[float, float]:
    """Return the difference in facts, and half its 95 % interval from resampling questions."""
    count = len(ours.asked)
    chosen = np.vstack([np.arange(count), np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))])
    found = ours.resampled(chosen)["facts"] - theirs.resampled(chosen)["facts"]
    low, high = np.quantile(found[1:], (0.025, 0.975))
    return float(found[0]), float(high - low) / 2


def token_share(ours: Answers, theirs: Answers, only_sketched: bool) -> float:
    """Return the ratio of the target's tokens; NaN if there is no such answer."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.sketched or not only_sketched]
    return (
        sum(a.llm_tokens for a, _ in pairs) / sum(b.llm_tokens for _, b in pairs) if pairs else float("nan")
    )


def figures(graded: dict[str, Graded], seed: int) -> dict[str, float]:
    """Return the figures of the bars."""
    cloud, pice, decided = graded["cloud"], graded["ensemble"], graded["as decided"]
    gain, error = difference(pice.scores, graded["single"].scores, seed)
    found = {
        "pice_over_cloud": pice.facts / cloud.facts,
        "pice_over_cloud_rouge": pice.rouge / cloud.rouge,
        "pice_minus_edge": pice.facts - graded["edge"].facts,
        "pice_minus_routing": pice.facts - graded["routing"].facts,
        "ensemble_gain": gain,
        "ensemble_gain_error": error,
        "llm_token_share": token_share(pice.answers, cloud.answers, only_sketched=True),
        "llm_token_share_overall": token_share(pice.answers, cloud.answers, only_sketched=False),
        "sketched_share": pice.sketched,
        "as_decided_over_cloud": decided.facts / cloud.facts,
        "as_decided_llm_token_share_overall": token_share(
            decided.answers, cloud.answers, only_sketched=False
        ),
        "as_decided_sketched_share": decided.sketched,
        "should_sketch_f1": decision.should_sketch_f1() if decision.LABELLED.exists() else float("nan"),
    }
    return {name: round(value, 4) for name, value in found.items()}


def _row(name: str, items: Sequence[Item], graded: Graded) -> list[str]:
    share = graded.scores.stated / graded.scores.asked
    of_kind = [np.array([item.kind == kind for item in items]) for kind in TASK_KINDS]
    return [
        name,
        *(f"{x:.3f}" for x in (graded.facts, graded.rouge, graded.complete)),
        f"{graded.llm_tokens:.1f}",
        f"{graded.sketched:.2f}",
        *(f"{share[of].mean():.2f}" if of.any() else "" for of in of_kind),
    ]


async def evaluate(
    expanders: Sequence[str], questions: int, choosing_seed: int, seed: int
) -> tuple[Chosen, list[Item], dict[str, Graded]]:
    """Choose, and judge what was chosen on other questions. questions: drawn with each seed."""
    models = Models(expanders, sessions=8 * AT_ONCE)
    try:
        known = heldout(questions, TASK_KINDS, choosing_seed)
        chosen = await choose(models, expanders, known)
        asked = {item.question for item in known}
        items = [item for item in heldout(questions, TASK_KINDS, seed) if item.question not in asked]
        return chosen, items, await judge(models, chosen, items)
    finally:
        await models.close()


def main(arguments: Sequence[str] = ()) -> None:
    parser = report.parser("pice_quality", __doc__)
    parser.add_argument("--questions", type=int, default=210, help="drawn with each seed (%(default)s)")
    parser.add_argument("--expanders", nargs="+", default=EXPANDERS, help="small models (all of the family)")
    parser.add_argument(
        "--choosing-seed", type=int, default=5, help="of the questions to choose by (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=11, help="of those that are judged (%(default)s)")
    options = parser.parse_args(arguments)
    chosen, items, graded = asyncio.run(
        evaluate(options.expanders, options.questions, options.choosing_seed, options.seed)
    )
    names = {
        "cloud": "cloud-only",
        "edge": f"edge-only: {chosen.edge.models[0]}",
        "routing": f"routing, edge up to {chosen.longest} tokens",
        "single": f"PICE: {chosen.single.models[0]}",
        "ensemble": f"PICE: {' and '.join(chosen.ensemble.models)}",
        "as decided": "… as decided by wording",
    }
    report.table(
        f"{len(items)} questions (seed {options.seed}); by kind: facts",
        ["", "facts", "ROUGE-1", "complete", "target's tokens", "sketched", *TASK_KINDS],
        [_row(told, items, graded[name]) for name, told in names.items()],
    )
    if decision.LABELLED.exists():
        decision.show()
    report.figures("pice_quality", figures(graded, options.seed))


if __name__ == "__main__":
    main()
