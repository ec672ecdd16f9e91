"""GGUF files that llama.cpp cannot run are told before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.app.preflight import check
from tandem.app.settings import Settings
from tandem.engine.llamacpp.config import LlamacppConfig
from tandem.engine.models.model_folder import UnsupportedModel
from tests.engine.gguf.files import byte_level, write

pytestmark = pytest.mark.llamacpp


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("nonesuch", "unknown model architecture: 'nonesuch'.*Hugging Face folder"),
        ("mamba", "is a recurrent model"),
    ],
)
def test_an_architecture_that_it_does_not_have(tmp_path: Path, architecture: str, said: str) -> None:
    file = write(tmp_path / "a.gguf", byte_level() | {"general.architecture": architecture})
    engine = {"kind": "llamacpp", "model": str(file)}
    with pytest.raises(ValueError, match=rf"^verifier\.engine\.model: .*{said}"):
        check(Settings.model_validate({"verifier": {"engine": engine}}))


def test_a_model_that_it_runs(target_gguf: Path) -> None:
    from tandem.engine.llamacpp.model import LlamaModel
    from tandem.engine.llamacpp.model import check as check_file

    check_file(target_gguf)
    config = LlamacppConfig()
    with pytest.raises(UnsupportedModel, match="cannot load"):
        LlamaModel(Path("nowhere.gguf"), cells=config.kv_tokens, rows=1, batch_tokens=8, threads=1)
