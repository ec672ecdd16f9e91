"""Folders made from real models' files, where those lie ready: beside llama.cpp's own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import pytest

from tandem.engine.gguf.folder import folder_of
from tandem.engine.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

MODELS = Path("~/.cache/tandem-models").expanduser()
PROMPTS = Path(__file__).parents[4] / "shared" / "data" / "prompts"
NAMES = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m", "gemma-3-270m")
HARD = [
    "  a  b   c\n\n\n d\t\te ",
    "日本語テキスト 東京🗼 👩‍👩‍👧 z̷a̷l̷ 𝔘𝔫𝔦",
    "1234567 12 ½ ²³ ٣٤٥ 3.14e-10",
    "naïve café e\u0301 \u00a0b\u3000c",
    "don't DON'T I'll we've\r\n\r\n x \n",
    "foo_bar(x)->y!=z; // --- **** <|im_end|>",
]


def texts() -> Iterator[str]:
    """Yield code, questions and answers."""
    yield from HARD
    for file in sorted(PROMPTS.glob("*.jsonl")):
        for line in file.read_text().splitlines()[::5]:
            said = json.loads(line)
            yield from (
                said[key] for key in ("prompt", "canonical_solution", "question", "answer") if key in said
            )
            yield from said.get("turns", ())


@pytest.fixture(scope="module", params=NAMES)
def file(request: pytest.FixtureRequest) -> Path:
    if not (found := MODELS / f"{request.param}.gguf").exists():
        pytest.skip(f"{found} is not there")
    return found


@pytest.fixture(scope="module")
def tokenizer(file: Path) -> Tokenizer:
    return Tokenizer.load(folder_of(file))


@pytest.fixture(scope="module")
def vocabulary(file: Path) -> Iterator[Any]:
    llama = pytest.importorskip("llama_cpp")
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, c_void_p())
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(file).encode(), options)
    yield llama.llama_model_get_vocab(model)
    llama.llama_model_free(model)


def test_texts_come_back(tokenizer: Tokenizer) -> None:
    for text in texts():
        assert (
            b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))).decode().removeprefix("<bos>")
            == text
        )


def test_llama_cpp_cuts_texts_into_the_same_tokens(tokenizer: Tokenizer, vocabulary: Any) -> None:
    import llama_cpp as llama

    compared = 0
    for text in texts():
        data = text.encode()
        room = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), True, True)
        assert tokenizer.encode(text) == list(room[:count]), text
        compared += 1
    assert compared > 300 or not PROMPTS.exists()
    assert tokenizer.eos == llama.llama_vocab_eos(vocabulary)


def test_models_of_one_family_have_one_vocabulary() -> None:
    files = [MODELS / f"{name}.gguf" for name in NAMES]
    if not all(file.exists() for file in files):
        pytest.skip(f"{MODELS} lacks models")
    large, small, *others = (Tokenizer.load(folder_of(file)).vocabulary for file in files)
    assert large == small
    assert len({large, *others}) == 3
