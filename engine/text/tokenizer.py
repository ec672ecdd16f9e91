"""Text to tokens: a model folder's tokenizer, and the prompts of chats.

Built on `tokenizers` alone: importing transformers would cost every replica seconds. Only who renders chats imports it.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from tandem.engine.base import InvalidRequest, Sampling
from tandem.engine.memory import give_back
from tandem.engine.text.chat_template import DEFAULT, ChatTemplate, either

RECOMMENDED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Sampling that generation_config.json may recommend, as vLLM takes it from there."""
PADDING = re.compile(r"\[PAD\d+\]")
"""Names that GGUF files give to ids that pad the model's matrix: `convert_hf_to_gguf.py` of llama.cpp."""


class Tokenizer:
    """The tokenizer of one model, in the Hugging Face folder layout.

    vocabulary: equal for two tokenizers if and only if they give every token the same id; padding is no token.
    eos: token id.
    further_ends: other tokens with which an answer ends, as generation_config.json names them.
    sampling: fields of `Sampling` that generation_config.json recommends.
    bos: token id; None if the model has none.
    vocab_size: number of tokens, added ones included.
    chat_template: jinja2 source; None if there is none.
    tool_template: that of chats with tools.
    """

    def __init__(
        self,
        definition: str,
        config: Mapping[str, Any],
        template: str | Mapping[str, str] | None = None,
        ends: Iterable[int] = (),
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """definition: text of tokenizer.json.
        config: content of tokenizer_config.json.
        template: jinja2 source of the chat template, or those of several by name; None if there is none.
        ends: tokens with which an answer ends.
        sampling: recommended fields of `Sampling`.
        """
        self._full = RustTokenizer.from_str(definition)
        self._full.no_truncation()
        self._full.no_padding()
        named = self._full.get_vocab(with_added_tokens=True)
        vocab = {name: i for name, i in named.items() if not PADDING.fullmatch(name)}
        added = self._full.get_added_tokens_decoder()
        self.vocab_size = max(vocab.values()) + 1
        self.vocabulary = hashlib.sha256(json.dumps(sorted(vocab.items())).encode()).hexdigest()[:16]
        self.bos = vocab.get(_token_text(config.get("bos_token")))
        eos = vocab.get(_token_text(config.get("eos_token")))
        if eos is None:
            raise ValueError("tokenizer_config.json names no eos_token of the vocabulary")
        self.eos: int = eos
        self.further_ends = tuple(sorted({*ends} - {eos}))
        self.sampling = dict(sampling or {})
        try:
            Sampling(**self.sampling).check()
        except InvalidRequest as error:
            raise ValueError(f"generation_config.json recommends sampling that cannot be: {error}") from None
        self._prepended = [self.bos] if self.bos is not None and config.get("add_bos_token") else []
        self._added = {token.content: i for i, token in added.items()}
        self._flags = {token.content: token for token in added.values()}
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._any_added = re.compile(either(self._added))
        self._marks = {
            token.content: i for i, token in added.items() if token.special or _SIGN.search(token.content)
        }
        self._any_mark = re.compile(either(self._marks))
        self._mark_ids = frozenset(self._marks.values())
        self._bytes = _TokenBytes(self._full, {i: token.content for i, token in added.items()})
        self._byte_ids: dict[int, int] | None = None
        templates = {DEFAULT: template} if isinstance(template, str) else template or {}
        self._template = ChatTemplate(templates, _named_tokens(config), self._marks)
        self.chat_template = self._template.source
        self.tool_template = self._template.tool_source

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read a folder: tokenizer.json and tokenizer_config.json, and if they are there the files with chat templates,
        special_tokens_map.json and generation_config.json.

        Raise FileNotFoundError without the first two, ValueError if they lack something needed.
        """
        folder = Path(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if "added_tokens_decoder" not in config and (file := folder / "special_tokens_map.json").exists():
            config |= json.loads(file.read_text(encoding="utf-8"))
        template = _templates(folder, config)
        generation: dict[str, Any] = {}
        if (file := folder / "generation_config.json").exists():
            generation = json.loads(file.read_text(encoding="utf-8"))
        ends = generation.get("eos_token_id") or ()
        ends = (ends,) if isinstance(ends, int) else ends
        sampling = {name: generation[name] for name in RECOMMENDED if generation.get(name) is not None}
        if sampling.get("top_k") == -1:  # some models write "all" so
            sampling["top_k"] = 0
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = cls(text, config, template, ends, sampling)
        del text
        give_back()  # reading a large vocabulary takes more for a moment than the tokenizer keeps
        return tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode a raw prompt. Special tokens written in it count as such; bos comes first, once, if the model has it
        and `add_special_tokens` is true."""
        if not add_special_tokens:
            return _encode(self._full, text)
        ids = _encode(self._full, text, add_special_tokens=True)
        if ids[:2] == [self.bos, self.bos]:  # written in the text, and added by the tokenizer
            return ids[1:]
        return ids if ids[:1] == self._prepended else self._prepended + ids

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Return the prompt of a chat, up to the beginning of the assistant's answer.

        messages: {"role", "content"} each, and other keys that the template knows. A special token written in a message
            stays ordinary text. If the template refuses a system message, its text goes before the first user's.
        variables: further variables of the template, such as enable_thinking.

        Raise InvalidRequest if the template refuses the messages or the model cannot chat.
        """
        if self.chat_problem is not None:
            raise InvalidRequest(f"this model cannot chat: {self.chat_problem}; use /v1/completions")
        prompt, given = self._template.render(messages, variables or {})
        if (broken := _BROKEN_TEXT.search(prompt)) is not None:
            raise InvalidRequest(f"the messages are no text: they contain half a character, {broken[0]!a}")
        marks = self._any_mark.findall(prompt)
        if not marks or self._template.writes_all(set(marks), given):
            ids = _encode(self._full, prompt)
            if self._marks_in(ids) == [self._marks[mark] for mark in marks]:
                return ids
        return self._encode_apart(prompt, self._template.written(prompt, given))

    @property
    def chats(self) -> bool:
        """Return whether the model can chat. Takes seconds the first time in a process."""
        return self.chat_problem is None

    @property
    def chat_problem(self) -> str | None:
        """Return the reason why the model cannot chat, such as that it has no chat template; None if it can."""
        return self._template.problem

    def turn_end(self) -> int | None:
        """Return the special token with which the chat template ends an answer; None if there is none."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            asked, _ = self._template.render(chat[:1], {})
            answered = self._template.without_answer(chat)
        except Exception:  # a template is a program
            return None
        begun = self._any_added.findall(asked)[-1:]  # some templates begin the next answer in any case
        after = self._any_added.search(answered, answered.find(_ANSWER) + 1)
        if after is None or after[0] in begun or self._added[after[0]] not in self._special:
            return None
        return self._added[after[0]]

    def _marks_in(self, ids: Iterable[int]) -> list[int]:
        return [i for i in ids if i in self._mark_ids]

    def _encode_apart(self, prompt: str, marks: Sequence[re.Match[str]]) -> list[int]:
        """Encode these marks of a prompt as their tokens, and the rest as text.

        Raise InvalidRequest if the vocabulary reads marks in texts even so.
        """
        parts, at = [], 0
        for mark in marks:
            parts.append(prompt[at : mark.start()])
            at = mark.end()
        parts.append(prompt[at:])
        for number, mark in enumerate(marks):
            token = self._flags[mark[0]]
            if token.lstrip:
                parts[number] = parts[number].rstrip()
            if token.rstrip:
                parts[number + 1] = parts[number + 1].lstrip()
        ids = _encode(self._plain, _BORDER.join(parts))
        if self._marks_in(ids):
            raise InvalidRequest(
                "a text spells a special token's name, which this vocabulary reads as that token"
            )
        border, tokens = self._plain.token_to_id(_BORDER), iter(self._marks[mark[0]] for mark in marks)
        return [next(tokens) if i == border else i for i in ids]

    @cached_property
    def _plain(self) -> RustTokenizer:
        """Tokenizer to which special tokens are only text, with a token for the border between two texts. Made when a
        text first needs it: making it takes as long as loading."""
        definition = json.loads(self._full.to_str())
        for token in definition["added_tokens"]:
            token["special"] = token["content"] in self._marks
        tokenizer = RustTokenizer.from_str(json.dumps(definition))
        tokenizer.add_tokens([AddedToken(_BORDER, normalized=False)])
        tokenizer.encode_special_tokens = True
        return tokenizer

    def _encode_plain(self, text: str) -> list[int]:
        return _encode(self._plain, text) if text else []

    def encode_bytes(self, data: bytes) -> list[int]:
        """Return ordinary tokens whose bytes are exactly these. Bytes that are no UTF-8, or would not come back, become
        tokens of one byte. Raise InvalidRequest if the vocabulary lacks those."""
        texts = _BROKEN.split(data.decode("utf-8", "surrogateescape"))
        return [token for text in texts for token in self._encode_exactly(text)]

    def _encode_exactly(self, text: str) -> list[int]:
        data = text.encode("utf-8", "surrogateescape")
        ids = [] if _BROKEN.match(text) else self._encode_plain(text)
        if self.shown_bytes(ids) == data:
            return ids
        words = _WORD.findall(text)
        if len(words) > 1:  # most of them come back
            return [token for word in words for token in self._encode_exactly(word)]
        return [self._byte(byte) for byte in data]

    def _byte(self, byte: int) -> int:
        """Return the token of one byte."""
        if self._byte_ids is None:
            named = [(bytes([b]), c, f"<0x{b:02X}>") for c, b in _BYTE_OF.items()]
            ids = [
                (b, i)
                for b, c, name in named
                for n in (c, name)
                if (i := self._full.token_to_id(n)) is not None
            ]
            self._byte_ids = {b[0]: i for b, i in ids if self._bytes[i] == b}
        if byte not in self._byte_ids:
            raise InvalidRequest(f"this vocabulary has no token for the byte 0x{byte:02X}")
        return self._byte_ids[byte]

    def special_name(self, token: int) -> str | None:
        """Return a special token's name; None for an ordinary token."""
        return self._bytes[token].decode() if token in self._special else None

    def special_id(self, name: str) -> int:
        """Return the special token of that name. Raise InvalidRequest if there is none."""
        token = self._added.get(name)
        if token is None or token not in self._special:
            raise InvalidRequest(f"this vocabulary has no special token {name!r}")
        return token

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of output tokens, without special ones; broken UTF-8 becomes U+FFFD."""
        return self.shown_bytes(ids).decode("utf-8", "replace")

    def written(self, ids: Iterable[int]) -> bytes:
        """Return the bytes from which these tokens would be read, special ones by name, without bos at the beginning
        where the tokenizer puts it there by itself.

        Raise InvalidRequest if ordinary tokens spell the name of a special one."""
        ids = list(ids)
        if ids[:1] == [self.bos] == self.encode("")[:1]:
            del ids[0]
        data = b"".join([self._bytes[i] for i in ids])
        named = (self._added[match[0]] for match in self._any_added.finditer(data.decode("utf-8", "replace")))
        if [i for i in named if i in self._special] != [i for i in ids if i in self._special]:
            raise InvalidRequest("the text spells a special token's name, which would be read as that token")
        return data

    def shown_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes that tokens add to the output's text: none for special ones."""
        return b"".join([self._bytes[i] for i in ids if i not in self._special])

    def token_bytes(self, token: int) -> bytes:
        """Return one token's bytes, which need not be whole UTF-8; a special token's name."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """Return one token as readable text, with U+FFFD for a part of a character."""
        return self._bytes[token].decode("utf-8", "replace")


class _TokenBytes(dict[int, bytes]):
    """Bytes by token id, computed on demand; those of added tokens are given."""

    def __init__(self, tokenizer: RustTokenizer, added: Mapping[int, str]) -> None:
        super().__init__((i, text.encode()) for i, text in added.items())
        self._token = tokenizer.id_to_token
        decoder = tokenizer.decoder
        self._byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()

    def __missing__(self, token: int) -> bytes:
        self[token] = value = self._read(token)
        return value

    def _read(self, token: int) -> bytes:
        piece = self._token(token)
        if piece is None or PADDING.fullmatch(piece):  # an id that pads the model's matrix: no text
            return b""
        if self._byte_level:
            return bytes(_BYTE_OF[c] for c in piece)
        if match := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode()


def _encode(tokenizer: RustTokenizer, text: str, add_special_tokens: bool = False) -> list[int]:
    """Encode with the fastest call of `tokenizers` that lets other threads run meanwhile."""
    return tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character with which byte-level BPE writes bytes (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()
_ANSWER = "\uf8ff"  # of Unicode's private use area: in no template
_BORDER = f"\ufdd0{secrets.token_hex(16)}\ufdd1"  # in no text: nobody knows it
_SIGN = re.compile(r"[^\w\s]")  # in an added token's name: it is no ordinary word, and no white space
_BROKEN_TEXT = re.compile("[\ud800-\udfff]+")
_WORD = re.compile(r"\s*\S+|\s+")
_BROKEN = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as surrogateescape writes them


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a folder by name. As in transformers, files come before the configuration; a
    processor's file is the last resort."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (path := folder / "chat_template.jinja").exists():
        files.setdefault(DEFAULT, path)
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    told = config.get("chat_template")
    if not told and (path := folder / "chat_template.json").exists():
        told = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(told, list):
        return {each["name"]: each["template"] for each in told}
    return told if isinstance(told, dict) else {DEFAULT: told} if told else {}


def _named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a configuration names, which transformers gives to chat templates."""
    named: dict[str, Any] = {}
    for name in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(tokens := config.get(name), dict):
            named |= tokens
    named |= {name: token for name, token in config.items() if name.endswith("_token")}
    return {name: text for name, token in named.items() if (text := _token_text(token))}


def _token_text(token: Any) -> str:
    """Return the text of a token in tokenizer_config.json: a string, or an object with a `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""
