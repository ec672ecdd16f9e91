"""Text to tokens: a model folder's tokenizer and its chat template.

Built on `tokenizers` and `jinja2` alone: importing transformers would cost every replica seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RustTokenizer

from tandem.engine.base import InvalidRequest, Sampling
from tandem.engine.text.detokenizer import unfinished_length

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
    """

    def __init__(
        self,
        definition: str,
        config: Mapping[str, Any],
        template: str | None = None,
        ends: Iterable[int] = (),
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """definition: text of tokenizer.json.
        config: content of tokenizer_config.json.
        template: jinja2 source of the chat template; None if there is none.
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
        self._special = frozenset(i for i, token in added.items() if token.special)
        names = sorted(map(re.escape, self._added), key=len, reverse=True)
        self._any_added = re.compile("|".join(names) or r"(?!)")
        self._bytes = _TokenBytes(self._full, {i: token.content for i, token in added.items()})
        self._byte_ids: dict[int, int] | None = None
        self.chat_template = template or None
        try:
            self._template = _environment().from_string(template) if template else None
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template is broken: {error}") from None
        self._variables = {
            name: _token_text(config.get(name))
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        }

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a folder.

        Raise FileNotFoundError without the first two, ValueError if they lack something needed.
        """
        folder = Path(folder)
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        template_file = folder / "chat_template.jinja"
        template = config.get("chat_template")
        if template_file.exists():
            template = template_file.read_text(encoding="utf-8")
        elif isinstance(template, list):  # several named templates: the one for plain chat
            template = next((t["template"] for t in template if t["name"] == "default"), None)
        generation: dict[str, Any] = {}
        if (file := folder / "generation_config.json").exists():
            generation = json.loads(file.read_text(encoding="utf-8"))
        ends = generation.get("eos_token_id") or ()
        ends = (ends,) if isinstance(ends, int) else ends
        sampling = {name: generation[name] for name in RECOMMENDED if generation.get(name) is not None}
        if sampling.get("top_k") == -1:  # some models write "all" so
            sampling["top_k"] = 0
        return cls((folder / "tokenizer.json").read_text(encoding="utf-8"), config, template, ends, sampling)

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

        Raise InvalidRequest if the template refuses the messages or the model has no template.
        """
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions")
        given = {**(variables or {}), "messages": messages}
        mark = _unused_character(given)
        escaped = {
            name: _in_texts(value, lambda text: self._escape(text, mark)) for name, value in given.items()
        }
        try:
            prompt = self._rendered(escaped)
        except jinja2.TemplateError as error:
            try:
                prompt = self._rendered(escaped | {"messages": _without_system(escaped["messages"])})
            except jinja2.TemplateError:
                raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from None
        if mark not in prompt:
            return _encode(self._full, prompt)
        return self._encode_marked(prompt, mark)

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        assert self._template is not None
        return self._template.render({**variables, **self._variables, "add_generation_prompt": True})

    @property
    def chats(self) -> bool:
        """Return whether there is a chat template."""
        return self._template is not None

    def turn_end(self) -> int | None:
        """Return the special token with which the chat template ends an answer; None if there is none."""
        if self._template is None:
            return None
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            asked = self._template.render(messages=chat[:1], add_generation_prompt=True, **self._variables)
            answered = self._template.render(messages=chat, **self._variables)
        except jinja2.TemplateError:
            return None
        begun = self._any_added.findall(asked)[-1:]  # some templates begin the next answer in any case
        after = self._any_added.search(answered, answered.find(_ANSWER) + 1)
        if after is None or after[0] in begun or self._added[after[0]] not in self._special:
            return None
        return self._added[after[0]]

    def _escape(self, content: str, mark: str) -> str:
        """Break every added token in `content` with `mark`, including one that the text after it would complete."""
        content = self._any_added.sub(lambda m: m[0][0] + mark + m[0][1:], content)
        if unfinished := unfinished_length(content, self._added):
            at = len(content) - unfinished + 1
            content = content[:at] + mark + content[at:]
        return content

    def _encode_marked(self, prompt: str, mark: str) -> list[int]:
        """Encode the template's added tokens as their ids, and the rest as plain text without marks."""
        ids: list[int] = []
        at = 0
        for match in self._any_added.finditer(prompt):
            ids += self._encode_plain(prompt[at : match.start()].replace(mark, ""))
            ids.append(self._added[match[0]])
            at = match.end()
        return ids + self._encode_plain(prompt[at:].replace(mark, ""))

    @cached_property
    def _plain(self) -> RustTokenizer:
        """Tokenizer without added tokens, which are then only text. Made when a text first needs it: making it takes
        as long as loading."""
        definition = json.loads(self._full.to_str())
        for token in definition["added_tokens"]:
            token["special"] = True
        tokenizer = RustTokenizer.from_str(json.dumps(definition))
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
_WORD = re.compile(r"\s*\S+|\s+")
_BROKEN = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as surrogateescape writes them


def _in_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return the value with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _in_texts(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_in_texts(item, change) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, Sequence)):
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _without_system(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the messages with a leading system message's text before the first user's."""
    match messages:
        case [
            {"role": "system", "content": str(told)},
            {"role": "user", "content": str(asked)} as user,
            *others,
        ]:
            return [{**user, "content": f"{told}\n\n{asked}"}, *others]
    return messages


def _unused_character(variables: Mapping[str, Any]) -> str:
    """Return a character of Unicode's private use area that is in no text of a chat. Raise InvalidRequest if there is
    none."""
    used: set[str] = set().union(*_texts(variables))
    unused = next((c for c in map(chr, range(0xE000, 0xF900)) if c not in used), None)
    if unused is None:
        raise InvalidRequest("the messages use every character of Unicode's private use area")
    return unused


def _token_text(token: Any) -> str:
    """Return the text of a token in tokenizer_config.json: a string, or an object with a `content`."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def _environment() -> jinja2.Environment:
    """Return a sandbox with transformers' own settings: chat templates come with models."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment
