"""Folders made from GGUF files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.deployments.pools.models import model_folder
from tandem.engine import cache
from tandem.engine.base import InvalidRequest
from tandem.engine.gguf.folder import folder_of
from tandem.engine.models.model_folder import UnsupportedModel, read_config
from tandem.engine.text.tokenizer import Tokenizer
from tests.engine.gguf.files import CONTROL, LLAMA, NORMAL, byte_level, write
from tests.engine.text.test_tokenizer import TEMPLATE, TOKENIZER

TEXTS = [
    "def f(x):\n    return {'a': 12345}  # ½ × 3.14\r\n\n\n\tpass",
    "  two spaces, 東京 🗼 naïve cafe\u0301 \u00a0 ",
    "<|q|> what? 'll DON'T",
]
CHAT = [{"role": "user", "content": "the cat"}]


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TANDEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def test_the_tokenizer_is_the_model_s_own(tmp_path: Path) -> None:
    made = Tokenizer.load(model_folder(str(write(tmp_path / "a.gguf", byte_level()))))
    assert made.vocabulary == TOKENIZER.vocabulary
    assert (made.eos, made.bos, made.vocab_size) == (TOKENIZER.eos, TOKENIZER.bos, TOKENIZER.vocab_size)
    assert made.render_chat(CHAT) == TOKENIZER.render_chat(CHAT)
    for text in TEXTS:
        assert made.encode(text) == TOKENIZER.encode(text)
        assert b"".join(map(made.token_bytes, made.encode(text))).decode() == text


def test_padding_is_no_token(tmp_path: Path) -> None:
    padded = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", byte_level(padding=7))))
    assert (padded.vocabulary, padded.vocab_size) == (TOKENIZER.vocabulary, 320)
    assert padded.decode([*padded.encode("cat"), 320, 326, 400]) == "cat"
    assert padded.decode(padded.encode("[PAD320]")) == "[PAD320]"
    other = byte_level()
    other["tokenizer.ggml.tokens"].append("another")
    other["tokenizer.ggml.token_type"].append(NORMAL)
    assert Tokenizer.load(folder_of(write(tmp_path / "b.gguf", other))).vocabulary != TOKENIZER.vocabulary


def test_configuration(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", byte_level(padding=7))
    config = json.loads((folder_of(file) / "config.json").read_text())
    assert config == {
        "max_position_embeddings": 512,
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "model_type": "llama",
        "vocab_size": 327,
        "gguf_file": str(file),
        "quantization": "Q4_K_M",
        "vocabulary": TOKENIZER.vocabulary,
    }
    with pytest.raises(UnsupportedModel, match="kind llamacpp"):
        read_config(folder_of(file))


def test_answers_end_with_the_template_s_token(tmp_path: Path) -> None:
    """Gemma's files name as eos the end of a text, and not of a turn."""
    turns = "{% for m in messages %}<|q|>{{ m.content }}<|a|>{% endfor %}{% if add_generation_prompt %}<|q|>{% endif %}"
    folder = folder_of(write(tmp_path / "a.gguf", byte_level(template=turns)))
    assert Tokenizer.load(folder).eos == 3
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": [3, 1]}
    without = folder_of(write(tmp_path / "b.gguf", byte_level(template=None)))
    assert json.loads((without / "generation_config.json").read_text()) == {"eos_token_id": [1]}
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer.load(without).render_chat(CHAT)


def test_a_broken_template_leaves_completions(tmp_path: Path) -> None:
    made = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", byte_level(template="{% for"))))
    assert made.chat_problem == "its chat template is broken: unexpected 'end of template'"
    assert made.encode("<|q|>") == [2]


def test_several_templates_by_name(tmp_path: Path) -> None:
    further = {
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": f"<|a|>{TEMPLATE}",
    }
    further["tokenizer.chat_template.../../x"] = "no name"
    made = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", byte_level() | further)))
    assert (made.chat_template, made.tool_template) == (TEMPLATE, f"<|a|>{TEMPLATE}")
    assert made.render_chat(CHAT, {"tools": []}) == [3, *made.render_chat(CHAT)]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", " 12", [" 12"]),
        ("smollm", " 12", [" ", "1", "2"]),
        ("gpt-2", "!\n", ["!", "\n"]),
        ("llama-bpe", "!\n", ["!\n"]),
        ("chatglm-bpe", "!\n", ["!\n"]),
    ],
)
def test_words_are_cut_as_the_pre_tokenizer_says(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    metadata = byte_level() | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    for one, other in (("1", "2"), ("Ġ", "12"), ("!", "Ċ")):
        tokens.append(one + other)
        merges.append(f"{one} {other}")
    metadata["tokenizer.ggml.token_type"] += [1] * 3
    made = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", metadata)))
    assert [made.token_text(token) for token in made.encode(text)] == pieces


def test_bos_comes_first_where_the_file_or_its_pre_tokenizer_says_so(tmp_path: Path) -> None:
    for number, (pre, said, first) in enumerate(
        [("gpt-2", None, 4), ("gpt-2", True, 0), ("llama-bpe", None, 0), ("llama-bpe", False, 4)]
    ):
        metadata = byte_level() | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": said}
        ids = Tokenizer.load(folder_of(write(tmp_path / f"{number}.gguf", metadata))).encode("!")
        assert ids[0] == first


def test_special_tokens_of_characters_beyond_the_byte_alphabet(tmp_path: Path) -> None:
    name = "<｜end▁of▁turn｜>"
    metadata = byte_level(
        template="{% for m in messages %}<|a|>{{ m.content + '" + name + "' }}{% endfor %}<|a|>"
    )
    metadata["tokenizer.ggml.tokens"].append(name)
    metadata["tokenizer.ggml.token_type"].append(CONTROL)
    made = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", metadata)))
    assert (made.special_id(name), made.eos, made.vocab_size) == (320, 320, 321)
    assert made.encode(f"a{name}")[-1] == 320


@pytest.mark.parametrize("adds", [True, False])
def test_sentencepiece_vocabularies(tmp_path: Path, adds: bool) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    kinds = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1]
    metadata = LLAMA | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [*[0] * 262, -1, -2],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": adds,
    }
    made = Tokenizer.load(folder_of(write(tmp_path / "a.gguf", metadata)))
    ids = made.encode("ab ab é")
    assert ids[0] == made.bos == 1
    assert made.decode(ids) == " " * adds + "ab ab é"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokenizer.ggml.pre": "mine"}, "'mine'.*Hugging Face folder"),
        ({"general.architecture": "bert", "tokenizer.ggml.model": "bert"}, "is a bert .* no language model"),
        ({"general.architecture": "clip", "tokenizer.ggml.tokens": None}, "is a clip .* no language model"),
        ({"general.type": "adapter"}, "no model but a adapter"),
        ({"tokenizer.ggml.eos_token_id": None}, "eos_token"),
        ({"tokenizer.ggml.eos_token_id": 4_000_000_000}, "eos_token"),
        ({"split.count": 2}, "name the first, …-00001-of-00002.gguf"),
    ],
)
def test_files_of_no_use(tmp_path: Path, cached: Path, changed: dict[str, object], said: str) -> None:
    file = write(tmp_path / "a.gguf", byte_level() | changed)
    with pytest.raises(UnsupportedModel, match=f"a.gguf.*{said}"):
        folder_of(file)
    assert not cached.exists()


def test_a_model_in_parts(tmp_path: Path) -> None:
    file = write(tmp_path / "a-00001-of-00002.gguf", byte_level() | {"split.count": 2})
    with pytest.raises(UnsupportedModel, match="a-00002-of-00002.gguf is not beside it"):
        folder_of(file)
    other = write(tmp_path / "a-00002-of-00002.gguf", LLAMA | {"split.count": 2})
    whole = other.read_bytes()
    other.write_bytes(whole[:-9])
    with pytest.raises(UnsupportedModel, match="00002-of-00002.gguf is cut off"):
        folder_of(file)
    other.write_bytes(whole)
    assert folder_of(file).is_dir()
    other.unlink()
    with pytest.raises(UnsupportedModel, match="a-00002-of-00002.gguf is not beside it"):
        folder_of(file)


def test_a_folder_is_made_once_until_the_file_changes(tmp_path: Path, cached: Path) -> None:
    file = write(tmp_path / "a.gguf", byte_level())
    folder = folder_of(file)
    assert cache.folder() / "gguf" == folder.parent == cached
    state = (folder / "tokenizer.json").stat()
    assert folder_of(file) == folder
    assert (folder / "tokenizer.json").stat() == state
    os.utime(file, ns=(1, 1))
    assert folder_of(file) != folder


@pytest.mark.slow  # three processes, each of which loads torch
def test_several_processes_make_it_at_once(tmp_path: Path, cached: Path) -> None:
    file = write(tmp_path / "a.gguf", byte_level())
    code = (
        "import sys; from pathlib import Path; from tandem.engine.gguf.folder import folder_of; "
        "print(folder_of(Path(sys.argv[1])))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = {process.communicate()[0].strip() for process in started}
    assert found == {str(folder_of(file))}
    assert list(cached.iterdir()) == [folder_of(file)]


def test_neither_transformers_nor_torch_is_needed_again(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", byte_level())
    folder_of(file)
    code = (
        "import sys; from pathlib import Path; from tandem.engine.gguf.folder import folder_of; "
        "folder_of(Path(sys.argv[1])); assert not {'torch', 'transformers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code, file], check=True)
