"""The ingress without Serve: how it is set up, and in which tokens it speaks to endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from tandem.app.api.completions.admission import admit
from tandem.app.api.completions.schema import ChatRequest
from tandem.app.api.http.errors import NotReady
from tandem.app.ingress import Ingress
from tandem.app.settings import Settings
from tandem.cluster.devices.record import DeviceRecord
from tandem.deployments.access.accounts import Terms
from tandem.deployments.access.keys import Caller, Role
from tandem.deployments.request.assignment import EndpointInfo
from tandem.deployments.request.job import Job
from tandem.deployments.routing.directory import Snapshot
from tandem.engine.base import EngineError, Sampling
from tandem.engine.null.engine import NullEngine
from tandem.engine.sketch.base import Question
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import Translated

NULL = {"engine": {"kind": "null"}}
OTHER = {"engine": {"kind": "torch", "model": "other"}}


class Alone(Ingress.func_or_class.__bases__[0]):  # type: ignore[misc, name-defined]  # the class as it was before Serve wrapped it
    def __del__(self) -> None:
        """Serve awaits the real one."""


@asynccontextmanager
async def started(**settings: Any) -> AsyncIterator[Any]:
    """The ingress with these settings, without a router."""
    ingress = Alone.__new__(Alone)
    await ingress.__init__(None, None, None, Settings(**settings))
    try:
        yield ingress
    finally:
        await super(Alone, ingress).__del__()


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], EndpointInfo]:
    """Makes endpoints of a model and a vocabulary, all of which turn out to be the same null engine."""

    async def engine(*_: object) -> NullEngine:
        return NullEngine()

    monkeypatch.setattr("tandem.cluster.wire.peers.Peers.engine", engine)
    return lambda model, vocabulary: EndpointInfo(
        "phone", "127.0.0.1:9", "phone", model=model, vocabulary=vocabulary, device=True
    )


@pytest.mark.parametrize("limit", ["open_s", "first_s", "step_s"])
async def test_the_wire_waits_for_longer_than_the_executor(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("tandem.app.ingress.Peers", lambda **settings: given.update(settings))
    ingress = Alone.__new__(Alone)
    await ingress.__init__(None, None, None, Settings(limits={limit: 300.0, "connect_s": 20.0}))
    assert given["settings"].timeout_s > 300
    assert given["settings"].hello_s > 20


async def test_modes_are_told_their_settings() -> None:
    async with started(window={"name": "static", "parameters": {"size": 3}}, fused_window=7) as ingress:
        mode = ingress._models["tandem"].executor.mode("speculative")
        assert (mode._pairs._window().size, mode._fused_window) == (3, 7)
        ingress.reconfigure({"fused_window": 2, "window": None})
        mode = ingress._models["tandem"].executor.mode("speculative")
        assert (mode._pairs._window().size, mode._fused_window) == (3, 2)


async def test_texts_are_looked_through_only_for_a_policy_that_compares() -> None:
    code = Question((1, 2), text="def double(x):\n    return 2 * x\nWhat does that print?")
    job = Job(1, code.prompt, Sampling(max_tokens=8), question=code)
    async with started() as ingress:
        executor = ingress._models["tandem"].executor
        assert (executor.wanted(job).content, executor.wanted(job).unsuited) == ("", ())
        assert ingress.objectives() == ()
        ingress.reconfigure({"router": {"collaboration": {"name": "auto"}}})
        assert (executor.wanted(job).content, executor.wanted(job).unsuited) == ("code", ("sketch",))
        assert executor.wanted(replace(job, mode="sketch")).unsuited == ()
        assert "balanced" in ingress.objectives()


async def test_a_devices_other_tokens_are_translated(dialled: Callable[[str, str], EndpointInfo]) -> None:
    async with started(hosts=[OTHER | {"devices": [{"name": "phone"}]}]) as ingress:
        target = ingress.tokenizer("tandem").vocabulary
        assert not isinstance(await ingress._models["tandem"].dial(dialled("target", target)), Translated)
        translated = await ingress._models["tandem"].dial(dialled("other", vocabulary_of("other")))
        assert isinstance(translated, Translated)
        assert translated.info.vocabulary == target


async def test_a_devices_unknown_tokens_are_refused(dialled: Callable[[str, str], EndpointInfo]) -> None:
    async with started(hosts=[OTHER | {"devices": [{"name": "phone"}]}]) as ingress:
        with pytest.raises(EngineError, match="vocabulary of 'stranger'") as refused:
            await ingress._models["tandem"].dial(dialled("stranger", "0123456789abcdef"))
    assert refused.value.code == "unknown_vocabulary"


async def test_the_null_engine_takes_any_tokens(dialled: Callable[[str, str], EndpointInfo]) -> None:
    async with started(verifier=NULL, hosts=[NULL | {"devices": [{"name": "phone"}]}]) as ingress:
        info = NullEngine().info
        assert isinstance(
            await ingress._models["tandem"].dial(dialled(info.model, info.vocabulary)), NullEngine
        )


async def test_text_is_in_the_verifiers_tokens() -> None:
    async with started(verifier=OTHER, drafter=OTHER) as ingress:
        assert ingress.tokenizer("tandem").vocabulary == vocabulary_of("other")


async def test_a_verifier_with_other_tokens_than_the_tokenizers_is_refused() -> None:
    with pytest.raises(ValueError, match="tokenizer 'other' .* verifier's model 'target'"):
        async with started(tokenizer="other"):
            pass


async def test_a_drafters_other_tokens_are_translated(dialled: Callable[[str, str], EndpointInfo]) -> None:
    async with started(verifier=OTHER) as ingress:
        translated = await ingress._models["tandem"].dial(dialled("small", vocabulary_of("small")))
        assert isinstance(translated, Translated)
        assert translated.info.vocabulary == vocabulary_of("other")


async def test_a_pool_without_replicas_may_have_any_tokens() -> None:
    async with started(verifier=OTHER, drafter={"replicas": 0}) as ingress:
        assert ingress.tokenizer("tandem").vocabulary == vocabulary_of("other")


async def test_an_adapter_is_a_model_for_clients() -> None:
    engine = {"kind": "vllm", "model": "target", "adapters": {"mine": "/adapters/mine"}}
    models = {"base": {"verifier": {"engine": engine}, "aliases": ["b"]}, "else": {}}
    async with started(models=models) as ingress:
        cards = {card.id: (card.parent, card.aliases) for card in ingress.models()}
        assert cards == {"base": (None, ("b",)), "mine": ("base", ()), "else": (None, ())}
        assert ingress.tokenizer("mine") is ingress.tokenizer("base")
        request = ChatRequest.model_validate(
            {"model": "mine", "messages": [{"role": "user", "content": "?"}]}
        )
        admitted = await admit(request, ingress, Caller("", Role.USER, Terms(0.5, 0.0), keyed=False))
        assert [(job.model, job.sampling.adapter) for job in admitted.jobs] == [("base", "mine")]
        assert admitted.model == "mine"


def vocabulary_of(model: str) -> str:
    from tandem.deployments.pools.models import model_folder

    return Tokenizer.load(model_folder(model)).vocabulary


async def test_readiness_knows_pools_and_devices() -> None:
    phone = DeviceRecord(name="phone", address="", profile="", model="small", vocabulary="v")
    up = {pool: (EndpointInfo(f"{pool} 1", "a:1", pool),) for pool in ("verifier", "drafter")}
    async with started(hosts=[OTHER | {"devices": [{"name": "phone"}]}]) as ingress:

        async def ready(**state: Any) -> dict[str, Any]:
            ingress._router.snapshot = AsyncMock(return_value=Snapshot(1, **state))
            return await ingress.ready()

        told = await ready(pools=up, devices={"phone": phone})
        assert (told["verifier"], told["devices"]) == (1, 1)
        assert told["modes"] == {
            "tandem": dict.fromkeys(("cloud", "device", "speculative", "race", "sketch"), "")
        }
        away = await ready(pools=up, awaited=frozenset({"phone"}))
        assert away["missing"] == ["phone"]
        assert away["modes"]["tandem"]["race"] == "no device is up"
        assert away["modes"]["tandem"]["cloud"] == "", "a load balancer is not to drop what can answer"
        with pytest.raises(NotReady) as halved:
            await ready(pools=up | {"drafter": ()}, devices={"phone": phone})
        assert halved.value.reasons == ["no drafter is up"]
