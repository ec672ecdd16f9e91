"""Mode split in virtual time: the live mode over timed parts."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.deployments.modes.split import Splitting
from tandem.deployments.request.uplink_queue import UplinkQueue
from tandem.engine.split.hidden_states import row_bytes
from tandem.simulator.config.errors import ConfigError
from tandem.simulator.engines.script import EOS, FIRST, TOKEN, Script
from tandem.simulator.results.analysis import Result
from tandem.simulator.runs.run import simulate
from tandem.simulator.workload import Request
from tandem.simulator.world.network import HEADER_BYTES
from tests.simulator.configurations import DEVICE, ENDS, MIDDLE, TARGET, config, split

HIDDEN = 512
PLAIN: dict[str, Any] = {
    "chunking": {"name": "whole"},
    "drafting": {"name": "none"},
    "parallel_drafting": {"name": "none"},
    "drafter": "none",
}


def alone(prompt: int = 200, output: int = 40, count: int = 6, accepted: bool = True) -> list[Request]:
    """Requests of one device, one after the other."""
    return [Request(10.0 * i, prompt, output, bytes([accepted] * output), device=0) for i in range(count)]


def run(requests: list[Request], **changes: Any) -> Result:
    return simulate(config(**split(**changes)), requests=requests)


def figures(result: Result) -> list[Splitting]:
    return [Splitting.of(answer.stats) for answer in result.answers if answer.stats is not None]


@pytest.mark.parametrize("changes", [PLAIN, {}, {"drafter": "heads"}], ids=["U-shape", "HAT", "heads"])
def test_answers_are_whole_and_every_token_is_counted_once(changes: dict[str, Any]) -> None:
    result = simulate(config(**split(**changes), history=True))
    for answer, one in zip(result.answers, figures(result), strict=True):
        assert answer.ids == [*range(TOKEN, TOKEN + answer.output_tokens - 1), EOS]
        # the model adds a token of its own in each round, but where a draft ends the answer
        assert answer.output_tokens - one.accepted in (one.rounds, one.rounds - 1)


@pytest.mark.parametrize("changes", [PLAIN, {}, {"drafter": "heads"}], ids=["U-shape", "HAT", "heads"])
@pytest.mark.parametrize("wire", ["float16", "int8"])
def test_links_carry_a_row_for_each_position_and_nothing_of_the_prompt_comes_back(
    wire: Any, changes: dict[str, Any]
) -> None:
    """Up: the prompt, and in each round a draft and what was certain last; down: what judges."""
    prompt, row = 200, row_bytes(HIDDEN, wire)
    for accepted in (True, False):
        result = run(alone(prompt, 40, 1, accepted), **changes, wire=wire)
        (one,) = figures(result)
        assert bool(one.accepted) == (accepted and one.drafted > 0)
        assert one.up_bytes == (prompt - 1 + one.rounds + one.drafted) * row
        assert one.down_bytes == (one.rounds + one.drafted) * row
        frames = result.sent_bytes - one.up_bytes - one.down_bytes
        forwards = one.chunks + one.rounds - 1  # the last chunk goes with the first round
        assert frames == HEADER_BYTES * (4 + 2 * forwards), (
            "opened and closed, chunks and rounds, each both ways"
        )


def test_uploads_overlap_with_the_cloud() -> None:
    """A prompt in chunks is answered sooner than in one piece, by about what the cloud computes in the meantime;
    without overlap it is answered later."""
    base = {**PLAIN, "hidden": 4096}  # 80 tokens take as long on the link as 1,300 in the cloud
    requests = alone(prompt=1000, output=2)

    def ttft_s(chunking: dict[str, Any]) -> float:
        return run(requests, **{**base, "chunking": chunking}).answers[-1].ttft_s

    whole_s, hat_s = ttft_s({"name": "whole"}), ttft_s({"name": "hat"})
    sizes = {"name": "fixed", "parameters": {"size": 100}}
    overlapped_s = ttft_s(sizes)
    fixed_s = ttft_s({"name": "fixed", "parameters": {"size": 100, "overlap": False}})
    middle = MIDDLE["measured"]
    computed_s = middle["base_s"] + 1000 * middle["token_s"]
    assert whole_s - hat_s > 0.5 * (computed_s - middle["base_s"])
    assert hat_s <= overlapped_s < fixed_s
    upload_s = 1000 * 8192 / 2.5e6
    assert min(whole_s, hat_s) > upload_s


def test_drafts_and_branches_make_answers_faster() -> None:
    requests = alone(accepted=True)
    plain = run(requests, **PLAIN).answers[-1].tpot_s
    drafting = {"name": "threshold", "parameters": {"most": 3}}
    alone_s = run(requests, drafting=drafting, parallel_drafting={"name": "none"}).answers[-1].tpot_s
    result = run(requests, drafting=drafting)
    assert result.answers[-1].tpot_s < alone_s < plain
    assert figures(result)[-1].branches_used > 0


def test_rounds_pass_the_prompt_of_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one goes up beside an answer, tokens of this come later, but by far less than if its chunks went up as soon
    as they may; the prompt itself takes a little longer."""
    fixed = {"name": "fixed", "parameters": {"size": 64, "overlap": True}}
    asked = [Request(0.0, 20, 300, bytes([1, 0] * 150), device=0), Request(0.3, 1000, 2, bytes(2), device=0)]

    def times_s() -> tuple[float, float]:
        """Between two tokens while the prompt goes up, and until its first one."""
        reader, other = simulate(
            config(**split(hidden=4096, chunking=fixed), history=True), requests=asked
        ).answers
        assert reader.times_s is not None
        came_s = [time_s for time_s in reader.times_s if other.arrival_s < time_s < other.first_s]
        assert reader.times_s[-1] > other.first_s, "there were tokens to come all the time"
        return (came_s[-1] - came_s[0]) / (len(came_s) - 1), other.ttft_s

    async def at_once(uplink_queue: UplinkQueue, who: object, left: int) -> None:
        pass

    between_s, prompt_s = times_s()
    monkeypatch.setattr(UplinkQueue, "turn", at_once)
    hurried_s, soonest_s = times_s()
    assert between_s < 0.7 * hurried_s
    assert prompt_s < 1.2 * soonest_s


def test_heads_give_a_draft_in_one_pass() -> None:
    """Longer drafts take the device no longer, but for the one pass of all of them through its layers."""

    def ends_s(window: int) -> float:
        drafting = {"name": "threshold", "parameters": {"eta": 0.0, "most": window}}
        result = run(
            alone(output=61, accepted=True),
            drafter="heads",
            drafting=drafting,
            parallel_drafting={"name": "none"},
        )
        one, answer = figures(result)[-1], result.answers[-1]
        assert one.accepted == one.drafted
        return (answer.last_s - answer.first_s) / (one.rounds - 1)

    # five tokens more: their way through the layers, up, through the middle, and down again
    row = row_bytes(HIDDEN, "float16")
    more_s = 5 * (ENDS["token_s"] + row / 2.5e6 + MIDDLE["measured"]["token_s"] + row / 5e6)
    assert ends_s(6) - ends_s(1) == pytest.approx(more_s, rel=0.5)


def staged(stages: int, requests: list[Request], **changes: Any) -> Result:
    """Simulate a middle in stages on GPUs with known step times, with a link that takes no time."""
    engine = {"token_budget": 400, "batching": {"name": "fifo"}}  # a prompt a step
    group = {"hardware": "A6000", "model": "Llama-2-7B", "first": 2, "stages": stages, "engine": engine}
    devices = [{"count": 5, "hardware": "AGXOrin", "model": "Llama-2-7B"}]
    document = {**split(**changes), "targets": [group], "devices": devices}
    return simulate(config(**document), requests=requests)


def test_a_middle_in_stages_computes_as_many_batches_at_once() -> None:
    """A request alone takes as long as ever, but for what the host does at each further stage; several at once do not
    wait for each other's whole steps."""
    one, four = (staged(stages, alone(400, 2, 1), **PLAIN).answers[0].ttft_s for stages in (1, 4))
    assert one < four < one + 3 * 0.003
    together = [Request(0.0, 400, 2, bytes(2), device=i) for i in range(5)]
    last = [max(a.ttft_s for a in staged(stages, together, **PLAIN).answers) for stages in (1, 4)]
    assert last[1] < 0.6 * last[0]


def test_stages_have_each_others_layers_and_a_cache_together() -> None:
    group = {"hardware": "A6000", "model": "Llama-2-7B", "first": 2, "stages": 4}
    (target,), _ = config(
        **{
            **split(),
            "targets": [group],
            "devices": [{"count": 5, "hardware": "AGXOrin", "model": "Llama-2-7B"}],
        }
    ).topology()
    whole, *_ = config(
        **{
            **split(),
            "targets": [{**group, "stages": 1}],
            "devices": [{"count": 5, "hardware": "AGXOrin", "model": "Llama-2-7B"}],
        }
    ).topology()[0]
    steps = [timer.step_s(64, 64, 64 * 300) for timer in target.stage_timers(None)]
    host_s = 0.002
    assert sum(step - host_s for step in steps) == pytest.approx(
        whole.timer(None).step_s(64, 64, 64 * 300) - host_s, rel=0.02
    )
    complete = [group.complete_engine(None) for group in (whole, target)]
    assert complete[1].kv_blocks > 4 * complete[0].kv_blocks, "the weights are there but once"


def test_where_no_middle_is_nobody_asks_for_the_mode() -> None:
    with pytest.raises(ConfigError, match="mode split needs targets with a middle"):
        config(mode="split")
    with pytest.raises(ConfigError, match="readers there"):
        config(**split(), reader="cloud")
    with pytest.raises(ConfigError, match="hardware and model, or ends"):
        config(**{**split(), "devices": [DEVICE]})
    with pytest.raises(ConfigError, match="serve mode split alone"):
        config(**{**split(), "mode": "cloud"})
    with pytest.raises(ConfigError, match="begin with the same layer"):
        config(**{**split(), "targets": [MIDDLE, {**MIDDLE, "first": 3}]})
    with pytest.raises(ConfigError, match="below Llama-2-7B's 32 layers"):
        config(targets=[{"hardware": "A6000", "model": "Llama-2-7B", "first": 32}], mode="split")
    with pytest.raises(ConfigError, match="30 layers cannot be 31 stages"):
        config(targets=[{"hardware": "A6000", "model": "Llama-2-7B", "first": 2, "stages": 31}], mode="split")
    with pytest.raises(ConfigError, match="stages are of a middle"):
        config(targets=[{"hardware": "A6000", "model": "Llama-2-7B", "stages": 2}])


@pytest.mark.vllm
def test_a_middle_needs_our_own_engine() -> None:
    with pytest.raises(ConfigError, match="Tandem's own engine"):
        config(**{**split(), "targets": [{**MIDDLE, "engine": {"kind": "vllm"}}]})


@pytest.mark.vllm
def test_the_engine_of_whole_models_need_not_be_a_middles() -> None:
    (target,), _ = config(**split(), engine={"kind": "vllm"}).topology()
    assert target.engine.kind == "torch"


def test_modes_live_side_by_side() -> None:
    changes = {**split(), "mode": None, "targets": [TARGET, MIDDLE]}
    modes = ["cloud", "split", "speculative", "device", "split"]
    asked = [Request(0.1 * i, 30, 20, bytes([1] * 20), i % 3, mode=mode) for i, mode in enumerate(modes * 4)]
    result = simulate(config(**changes), requests=asked)
    assert [answer.mode for answer in result.answers] == modes * 4
    assert all(answer.finished for answer in result.answers)
    figures = result.summary()["modes"]
    assert figures.keys() == set(modes)
    assert figures["split"]["accepted"] > 0
    assert figures["speculative"]["rounds"] > 0


def test_the_second_turn_of_a_long_conversation_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1,000 tokens of history only what is new goes up: at most 15 % of the first turn's time to first token."""
    add = Script.add

    def turn(self: Script, request: Request, first: int = TOKEN, shared: tuple[int, int] = (0, 0)) -> Any:
        return add(self, request, first, (FIRST, 1000) if self._next > FIRST else shared)

    monkeypatch.setattr(Script, "add", turn)
    asked = [Request(at_s, prompt, 8, bytes(8), device=0) for at_s, prompt in ((0.0, 1001), (30.0, 1040))]
    for turns in (8, 0):
        result = run(asked, hidden=4096, turns=turns)
        begun, again = result.answers
        assert [one.kept for one in figures(result)] == [0, 1000 if turns else 0]
        assert (again.ttft_s <= 0.15 * begun.ttft_s) == (turns > 0)


def test_the_speed_of_the_ends_varies_over_time() -> None:
    """In half their speed they take twice the time; the middle and the link take what they took."""
    changes = split(**PLAIN)
    changes["devices"] = [changes["devices"][0] | {"speed_trace": [[0, 1], [5, 0.5]]}]
    full, half = simulate(config(**changes), requests=alone(count=2)).answers
    # the prompt passes the first layers, in two steps, and the head; so does every later token
    assert half.ttft_s - full.ttft_s == pytest.approx(2 * 0.004 + 200 * 0.0001 + 0.002)
    assert half.tpot_s - full.tpot_s == pytest.approx(0.004 + 0.0001 + 0.002)


@pytest.mark.parametrize("trace", [[[1, 1]], [[0, 1], [3, 1], [2, 1]], [[0, 0]]])
def test_a_trace_of_speed_has_an_order(trace: list[list[float]]) -> None:
    changes = split(**PLAIN)
    changes["devices"] = [changes["devices"][0] | {"speed_trace": trace}]
    with pytest.raises(ConfigError, match="speed_trace"):
        config(**changes)


def test_steps_of_the_middle_have_a_mean_and_a_deviation() -> None:
    (server,) = run(alone(count=2), **PLAIN).servers
    assert server.step_s * server.steps == pytest.approx(
        server.busy_s
    )  # a middle computes one step at a time
    assert server.step_deviation_s > 0  # the prompt's is longer
