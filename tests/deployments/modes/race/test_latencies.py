"""Statistics of racing endpoints: what all races of a model, a device or anybody share."""

from __future__ import annotations

from dataclasses import replace

from tandem.deployments.modes.race.latencies import Rivals
from tandem.deployments.request.assignment import EndpointInfo
from tandem.policies.estimators.windows import Outputs

SERVER = EndpointInfo("verifier 1", "10.0.0.1:1", "verifier", "target")
PHONE = EndpointInfo("phone", "phone", "phone", rtt_s=0.02, prefill_token_s=0.01, device=True)


def test_a_models_replicas_share_their_times_and_each_device_has_its_own() -> None:
    outputs = Outputs()
    rivals = Rivals(outputs)
    assert Rivals().outputs is not Rivals().outputs
    history = rivals.of(SERVER, PHONE)
    other = rivals.of(replace(SERVER, name="verifier 2", address="10.0.0.2:1"), replace(PHONE, name="laptop"))
    assert other.ttft is history.ttft
    assert other.resumed is history.resumed
    assert history.resumed is not history.ttft
    assert other.prefill is not history.prefill
    assert other.outputs is history.outputs is rivals.outputs is outputs
    assert rivals.of(replace(SERVER, model="another"), PHONE).ttft is not history.ttft


def test_a_device_tells_how_long_a_prompt_takes_until_it_is_known() -> None:
    prefill = Rivals().of(SERVER, PHONE).prefill
    assert prefill.step_s(100) == 0.02 + 100 * 0.01
