"""Models as /v1/models tells them."""

from __future__ import annotations

import httpx

from tandem.app.api.http.backend import ModelPart
from tests.app.api.null_backend import NullBackend

DEMO = ModelPart(role="target", model="target", parameters=5_264_064, bytes=10_539_976, demo=True)


async def test_a_demo_says_so_and_what_to_ask(http: httpx.AsyncClient, backend: NullBackend) -> None:
    backend.parts = (DEMO, ModelPart(role="device", model="own", devices=("phone",)))
    card = (await http.get("/v1/models/null")).json()
    assert card["demo"] is True
    assert "only an invented encyclopedia" in card["about"]
    assert [each["role"] for each in card["parts"]] == ["target", "device"]
    assert card["parts"][1]["devices"] == ["phone"]
    asked = [each["mode"] for each in card["examples"]]
    assert asked[:4] == ["speculative", "race", "sketch", "device"]


async def test_only_the_model_that_answers_makes_a_demo(
    http: httpx.AsyncClient, backend: NullBackend
) -> None:
    backend.parts = (ModelPart(role="target", model="own"), DEMO.model_copy(update={"role": "drafter"}))
    card = (await http.get("/v1/models")).json()["data"][0]
    assert (card["demo"], card["about"]) == (False, "")
    assert "Explain binary search." in [each["question"] for each in card["examples"]]


async def test_examples_have_modes_that_are_served(http: httpx.AsyncClient, backend: NullBackend) -> None:
    card = (await http.get("/v1/models/null")).json()
    assert {each["mode"] for each in card["examples"]} <= {None, *card["modes"]}
