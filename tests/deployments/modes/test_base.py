"""Parts that all modes share: origins of judged tokens, sampling of given ones, and what a mode need not say."""

from __future__ import annotations

import pytest

from tandem.deployments.modes.base import RouterPart, Services, forced, judged
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.device import DeviceMode
from tandem.deployments.request.assignment import Prices, RoutingRequest
from tandem.deployments.request.job import Job
from tandem.deployments.request.tokenlog import Origin
from tandem.engine.base import Sampling, TokenLogprob, Verdict
from tandem.engine.config import Strict
from tests.deployments.modes.test_alone import surroundings

D, C, B, T = Origin.DRAFT, Origin.CORRECTED, Origin.BONUS, Origin.CLOUD


@pytest.mark.parametrize(
    ("drafted", "accepted", "tokens", "origins"),
    [
        (0, 0, 1, [T]),
        (3, 0, 1, [C]),
        (3, 2, 3, [D, D, C]),
        (3, 3, 4, [D, D, D, B]),
        (3, 3, 3, [D, D, D]),  # the answer ends with a draft
        (3, 3, 2, [D, D]),
    ],
)
def test_a_token_that_the_target_judges_has_an_origin(
    drafted: int, accepted: int, tokens: int, origins: list[Origin]
) -> None:
    ids, told = list(range(20, 20 + tokens)), [TokenLogprob(-1.0)] * tokens
    delta = judged(7, drafted, Verdict(accepted, ids, "length", told))
    assert (delta.ids, delta.origins) == (ids, origins)
    assert (delta.position, delta.finish, delta.logprobs) == (7, "length", told)


def test_a_session_of_given_tokens_has_room_for_one_of_the_targets_own() -> None:
    sampling = forced(5, 2, "legal")
    assert sampling == Sampling(max_tokens=6, ignore_eos=True, logprobs=2, forced=True, adapter="legal")
    assert (forced(5).logprobs, forced(5).adapter) == (0, "")


async def test_a_mode_without_a_part_at_the_router_asks_it_nothing() -> None:
    with pytest.raises(RuntimeError, match="mode toy asks the router"):
        await Services().ask("toy", None)
    assert Services().tell("toy", None) is None
    part = RouterPart(Strict(), surroundings())
    with pytest.raises(NotImplementedError, match="RouterPart answers no int"):
        await part.ask(1)
    with pytest.raises(NotImplementedError, match="RouterPart takes no int"):
        part.tell(1)


def test_a_part_at_the_router_that_knows_nothing_holds_nobody_up() -> None:
    part, wanted = RouterPart(Strict(), surroundings()), RoutingRequest()
    assert part.idle
    assert part.predict(wanted, {}, Prices()) is None
    assert part.brief(wanted, {}, Prices()) is None
    assert part.spent("me") == {}
    other = Strict()
    part.follow(other)
    assert part.settings is other


@pytest.mark.parametrize("mode", [CloudMode, DeviceMode])
def test_a_plain_mode_suits_every_job_and_leaves_nothing_behind(
    mode: type[CloudMode | DeviceMode],
) -> None:
    made, job = mode(Strict(), Services()), Job(1, (5,), Sampling())
    made.check()
    assert made.suits(job)
    run = made.start(job)
    assert run.report() is None
    assert run.close() is None
