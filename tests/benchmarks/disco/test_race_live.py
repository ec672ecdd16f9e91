"""The live race runs the services that DiSCo's evaluation has, at more than one budget."""

from __future__ import annotations

import math
from pathlib import Path

import httpx
import pytest

from tandem.app.api.admin.keys import KeyForm
from tandem.app.settings import Settings
from tandem.benchmarks.disco.data import sigma_of
from tandem.benchmarks.disco.race_live import BUDGETS, POLICIES, SERVICES, Case, cases, read, settings, spent
from tandem.deployments.pools.engines import ServiceSettings
from tandem.policies.cost import per_million


@pytest.mark.parametrize("service", SERVICES)
def test_the_emulated_latency_is_the_evaluations(service: str) -> None:
    emulated = SERVICES[service]
    assert emulated.sigma == sigma_of(emulated.mape)
    assert emulated.median_s * math.exp(emulated.sigma**2 / 2) == pytest.approx(emulated.mean_s)
    asked = settings("race", 2, service)["verifier"]["engine"]["latency"]  # type: ignore[index]
    assert (asked["median_s"], asked["sigma"]) == (emulated.median_s, emulated.sigma)


def test_sigma_is_what_a_moving_average_misses_by() -> None:
    assert SERVICES["gpt-4o-mini"].sigma == pytest.approx(0.285, abs=0.001)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_application_takes_the_settings(policy: str) -> None:
    made = Settings(**settings(policy, 2, "command"))
    assert made.racing.dispatch.name == POLICIES[policy][0]  # type: ignore[attr-defined]  # a field of each mode's
    assert (made.accounts.price_in, made.accounts.price_out) == pytest.approx((1.25, 2.0))


def test_the_server_may_be_a_service(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(
        "{kind: openai, base_url: http://127.0.0.1:1/v1, model: m, tokenizer: target, price_in: 1, price_out: 2}"
    )
    made = Settings(**settings("race", 2, "command", read(file)))  # type: ignore[arg-type]
    assert isinstance(made.verifier.engine, ServiceSettings)
    assert made.verifier.engine.price == per_million(1, 2)
    file.write_text("{kind: openai, model: m}")
    with pytest.raises(ValueError, match="base_url"):
        read(file)


def test_every_policy_is_asked_for_the_same_at_several_budgets() -> None:
    assert len(BUDGETS) >= 2
    asked = {policy: cases(policy) for policy in POLICIES}
    pairs = {(side, budget) for side in ("server", "device") for budget in BUDGETS}
    for policy, found in asked.items():
        races = [case for case in found if case.constrained]
        assert {(case.constrained, case.budget) for case in races} == pairs
        assert [case.wishes["mode"] for case in races] == ["race"] * len(pairs)
        alone = [case.wishes for case in found if not case.constrained]
        assert alone == ([{"mode": "cloud"}, {"mode": "device"}] if policy == "chance" else [])
    names = [case.key["name"] for found in asked.values() for case in found]
    assert len(set(names)) == len(names)  # nobody learns from another's answers
    for found in asked.values():
        for case in found:
            KeyForm.model_validate(case.key)
            terms = {"exchange_rate": None, **case.key}
            assert case.wishes.get("exchange_rate") == terms["exchange_rate"], (
                "a request cannot raise its key's"
            )


def test_what_was_spent_is_told_by_the_budget_that_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(url: str, headers: dict[str, str]) -> httpx.Response:
        assert (url, headers) == (
            "http://host:1/v1/account",
            {"Authorization": "Bearer x"},
        )
        used = {"server": 0.9, "device": 0.3}
        return httpx.Response(200, json={"budget_used": used}, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    assert spent(("host", 1), Case("race", "device", 0.25), {"Authorization": "Bearer x"}) == pytest.approx(
        1.2
    )
