"""Calibration of mode sketch: the simulator reproduces live answers from the models' recorded texts."""

from __future__ import annotations

import pytest

from tandem.benchmarks.calibration.compare import Case, agreement, as_simulated, simulated
from tandem.benchmarks.calibration.live import TARGET, Seen
from tandem.benchmarks.calibration.profile import Costs
from tandem.benchmarks.calibration.sketch import ASKING, FORMAT, SMALL, Writers, questions, spans
from tandem.benchmarks.executor import new_job
from tandem.benchmarks.pice.embedded import TEXT, Models
from tandem.deployments.modes.sketch.settings import SketchingChoice, SketchSettings
from tandem.deployments.request.tokenlog import Origin
from tandem.engine import family
from tandem.engine.base import Sampling
from tandem.engine.config import EngineConfig
from tandem.engine.sketch.base import Question
from tandem.engine.torch.engine import load
from tandem.simulator.engines.script import EOS, Script
from tandem.simulator.engines.sketch import ScriptedFormat, SketchShape
from tandem.simulator.hardware import MeasuredTimer
from tandem.simulator.workload import Outline, Request

WRITTEN = TEXT.encode(" 130<|;|> Marworth lies by the sea<|;|> founded in 1203<|;|> has a harbour<eos>")
PROMPT = tuple(questions(1, seed=5)[0])


def _outline() -> Outline:
    sketch = FORMAT.read(WRITTEN, ended=True)
    return Outline(sketch.expected, len(WRITTEN) - 1, tuple(spans(WRITTEN, sketch.notes)), (20, 30, 10))


def test_a_sketch_is_read_as_the_live_one_at_every_token() -> None:
    script = Script()
    question = Question(script.add(Request(0.0, len(PROMPT), 61, outline=_outline())))
    format = ScriptedFormat(script, SketchShape(asking=ASKING))
    asked = format.sketch(question)
    live_question = Question(PROMPT)
    written = [script.own(asked[0], i) for i in range(len(WRITTEN))]
    assert written[-1] == EOS
    assert len(set(written)) == len(written)
    for n in range(len(WRITTEN) + 1):
        ended = n == len(WRITTEN)
        live, ours = FORMAT.read(WRITTEN[:n], ended), format.read(written[:n], ended)
        assert (ours.expected, list(map(len, ours.notes))) == (live.expected, list(map(len, live.notes)))
    assert len(live.notes) == 3
    for i in range(3):
        assert len(format.expand(question, ours, i)) == len(FORMAT.expand(live_question, live, i))
    assert len(asked) == pytest.approx(len(FORMAT.sketch(live_question) or ()), abs=1)


def _case(base_s: float) -> Case:
    """Two answers one after the other."""
    seen = [Seen(0.0, 0, PROMPT, outline=_outline(), in_full=131) for _ in range(2)]
    seen[1].arrival_s = 60.0
    for one in seen:
        one.origins, one.sketched = [Origin.EXPANSION] * 61, True
    costs = Costs(MeasuredTimer(base_s=base_s), call_s=0.001)
    return Case("sketch", 0.01, 1.0, seen, costs, as_simulated(TARGET))


def test_answers_are_sketched_where_it_is_worth_it() -> None:
    case = _case(0.05)
    result = simulated(case)
    assert [answer.tokens for answer in result.answers] == [20 + 30 + 10 + 1] * 2
    assert agreement(case, result) == {"agreed": 1.0, "tokens_agreed": 1.0}
    (group,) = result.config.topology()[1]
    assert (group.capacity, group.batch_limit) == (SMALL.sessions, SMALL.batch)


def test_disagreement_is_told() -> None:
    case = _case(0.002)  # quicker than a device, however many sentences that expands at once
    result = simulated(case)
    assert [answer.tokens for answer in result.answers] == [131, 131]
    assert agreement(case, result) == {"agreed": 0.0, "tokens_agreed": 0.0}


@pytest.mark.slow
async def test_what_they_are_asked_is_what_they_wrote() -> None:
    models = Models([SMALL.model], sessions=8)
    always = SketchSettings(sketching=SketchingChoice(name="always", parameters={"shortest": 2}))
    executor = models.executor([SMALL.model], always)
    target, small = (
        load(family.path(name), EngineConfig(), device="cpu", threads=1) for name in ("target", SMALL.model)
    )
    wrote = await Writers(target, small).asked([PROMPT])
    full, outline = wrote[PROMPT]
    lengths = {}
    for mode in ("cloud", "sketch"):
        job = new_job(PROMPT, Sampling(max_tokens=320), mode, question=Question(PROMPT))
        lengths[mode] = sum([len(delta.ids) async for delta in executor.run(job)])
    assert lengths == {"cloud": full, "sketch": sum(outline.sentences) + 1}
    assert len(outline.notes) == len(outline.sentences) > 1
    for engine in (target, small):
        await engine.close()
    await executor.settled()
    await models.close()
