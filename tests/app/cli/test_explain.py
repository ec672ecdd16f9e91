"""`tandem explain`: of a response that is kept, and of an answer on stdin."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from tandem.app.api.stats.why import why
from tandem.app.cli.main import cli
from tandem.deployments.request.forecast import Change, Forecast
from tandem.deployments.request.job import JobStats
from tandem.policies.routing.collaboration import Reason
from tandem.policies.routing.objectives import Candidate, Estimate, Prediction
from tests.app.api.null_backend import NullBackend

EXPECTED = Prediction(Estimate(0.5, 0.2, 0.1), Estimate(0.05), Estimate(1e-4), tokens=11)
REASON = Reason(2e-3, Candidate("cloud", None, EXPECTED), 3e-3, candidates=4)
FORECAST = Forecast("device", "phone", EXPECTED, EXPECTED, ("device",), reason=REASON)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments], input=stdin)


def told(reason: Reason, *changes: Change) -> str:
    """Return an answer's JSON."""
    forecast = FORECAST._replace(reason=reason)
    stats = JobStats(ttft_s=0.4, total_s=0.9, tokens=11, forecast=forecast, changes=list(changes))
    reasons = why([stats])
    assert reasons is not None
    return json.dumps({"tandem": {"why": reasons.model_dump()}})


def test_a_response_that_is_kept(backend: NullBackend, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.forecast = FORECAST
    monkeypatch.setenv("TANDEM_URL", url)
    made: dict[str, Any] = httpx.post(f"{url}/v1/responses", json={"model": "null", "input": "hello"}).json()
    shown = run(made["id"])
    assert shown.exit_code == 0, shown.stderr
    first, _, header, ttft, *_ = shown.stdout.splitlines()
    assert first == "device with phone was the best of 4 ways: $0.001 of expected loss below cloud."
    assert header.split("\t") == [
        "",
        "device with phone, expected (80 %)",
        "came",
        "cloud, expected (80 %)",
    ]
    assert ttft.startswith("ttft_s\t0.5 (0.3")
    assert json.loads(run(made["id"], "--json").stdout) == made["tandem"]["why"]
    assert "resp_none" in run("resp_none").stderr


def test_a_change_on_the_way() -> None:
    to = Forecast("cloud", None, EXPECTED, EXPECTED, ("cloud",))
    shown = run("-", stdin=told(REASON, Change(5, to)))
    assert "Tokens came late: after 5 of them the answer went on in cloud." in shown.stdout.splitlines()


def test_an_answer_on_stdin() -> None:
    shown = run("-", stdin=told(replace(REASON, second=None)))
    assert shown.stdout.splitlines()[0].startswith("device with phone was the only way")
    assert "\t0.4" in shown.stdout
    tried = run("-", stdin=told(replace(REASON, loss=4e-3, tried=True, missed=True))).stdout.splitlines()
    assert tried[0].endswith("$0.001 above that of cloud.")
    assert tried[1].startswith("No way")


@pytest.mark.parametrize(("stdin", "said"), [("{}", "`auto`"), ("[]", "no answer"), ("x", "no JSON")])
def test_what_cannot_be_explained(stdin: str, said: str) -> None:
    shown = run("-", stdin=stdin)
    assert (shown.exit_code, said in shown.stderr) == (1, True)


def test_what_was_replaced() -> None:
    """A device's own API compares nothing, and says what it has replaced."""
    reasons = why([JobStats()], {"name": 2})
    assert reasons is not None
    shown = run("-", stdin=json.dumps({"tandem": {"why": reasons.model_dump()}}))
    assert shown.stdout == "Private parts were replaced before the request left: 2 of kind name.\n"
