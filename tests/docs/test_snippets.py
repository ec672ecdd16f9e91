"""Snippets in the documents: Python compiles, requests are the API's, and settings are the application's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tandem.app.api.completions.schema import ChatRequest
from tandem.app.cli.server.up import read
from tandem.app.device.settings import DeviceProgram
from tandem.app.preflight import IMPORT_PATH
from tandem.app.settings import Settings
from tandem.deployments.config.settings import Strict
from tandem.deployments.pools.engines import TorchSettings
from tests.docs.documents import DOCUMENTS, fenced, name

PYTHON = [(document, code) for document in DOCUMENTS for code in fenced(document, "python")]
SETTINGS = [(document, code) for document in DOCUMENTS for code in fenced(document, "yaml")]


@pytest.mark.parametrize(("document", "code"), PYTHON, ids=name)
def test_python_compiles(document: Path, code: str) -> None:
    compile(code, str(document), "exec")


def test_requests_through_a_client_are_the_apis() -> None:
    asked: list[str] = []

    def create(extra_body: dict[str, Any], **fields: Any) -> None:
        asked.append(ChatRequest.model_validate(fields | extra_body).model)

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    snippets = [code for _, code in PYTHON if code.startswith("client.")]
    for code in snippets:
        exec(code, {"client": client})
    assert asked == ["tandem"] * len(snippets)
    assert snippets


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(("document", "code"), SETTINGS, ids=name)
def test_settings_are_the_applications(document: Path, code: str, tmp_path: Path) -> None:
    given = yaml.safe_load(code.replace("args: …", "args: {model: tandem}").replace("[…]", "[]"))
    if "applications" in given:
        file = tmp_path / "serve.yaml"
        file.write_text(yaml.safe_dump(given), encoding="utf-8")
        assert read(file).deployment["applications"][0]["import_path"] == IMPORT_PATH
    else:
        kinds: tuple[type[Strict], ...] = (Settings, DeviceProgram, TorchSettings)
        model = next(kind for kind in kinds if given.keys() <= kind.model_fields.keys())
        found = model.model_validate(given)
        assert found.model_fields_set == given.keys()
