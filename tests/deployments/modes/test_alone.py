"""Times of a device that answers alone: what it says of itself, else what was measured, else what is assumed."""

from __future__ import annotations

from tandem.deployments.learning.shared import DECODE_S
from tandem.deployments.modes.alone import draft_token_s
from tandem.deployments.modes.base import Surroundings
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.routing.assigner import Assigner
from tandem.policies.routing.collaboration import collaboration
from tandem.policies.routing.replica import routing


def test_a_drafted_token_takes_as_long_as_is_known() -> None:
    assigner = Assigner(collaboration.create("explicit"), lambda: routing.create("jsq"), 8)
    around = Surroundings(assigner, lambda: 0.5)
    told = EndpointInfo("told", "told", "phone", decode_token_s=0.01, device=True)
    silent = EndpointInfo("silent", "silent", "phone", device=True)
    assert draft_token_s(around, silent) == DECODE_S
    for device in (told, silent):
        around.shared.device(device.name).decode.note(2 * DECODE_S)
    assert draft_token_s(around, told) == 0.01
    assert draft_token_s(around, silent) == 2 * DECODE_S
