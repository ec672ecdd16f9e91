"""Chat templates, rendered by transformers, and which of the special tokens in a prompt they wrote themselves.

transformers is imported when a template is first rendered, which takes a second or two; torch is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar

from tandem.engine.base import InvalidRequest

if TYPE_CHECKING:
    import jinja2

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates, of those that a model may have several of."""
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles that are words of the templates' rather than of a client's."""
PROBE = "which bridges of this town were built first"
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up.",
        "parameters": {"type": "object", "properties": {}},
    },
}
HIDING = range(0xD800, 0xE000)
"""Surrogates, which no text that can be encoded contains: here they stand for letters that a client wrote."""
_HIDDEN = re.compile("[\ud800-\udfff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_FIELD = re.compile(r"%\w|\{\w*\}")
"""Place in a template's text that formatting replaces."""


class ChatTemplate:
    """A model's chat templates: one, or several by name.

    source: jinja2 of the one for chats without tools; None if there is none.
    tool_source: of the one for chats with tools.
    """

    def __init__(
        self, sources: Mapping[str, str], tokens: Mapping[str, str], marks: Collection[str] = ()
    ) -> None:
        """sources: by name.
        tokens: variables that every template gets, such as bos_token.
        marks: special tokens, which only a template may write.
        """
        self.source = sources.get(DEFAULT)
        self.tool_source = sources.get(WITH_TOOLS, self.source)
        self._tokens = dict(tokens)
        self._marks = frozenset(marks)
        self._any_mark = re.compile(either(self._marks))
        self._letters = sorted(set().union(*self._marks))
        self._splitting: dict[str, bool] = {}
        self._traced: dict[str, jinja2.Template] = {}

    @cached_property
    def problem(self) -> str | None:
        """Reason why the model cannot chat; None if it can. It is found by rendering a chat."""
        for source in filter(None, {self.source, self.tool_source}):
            try:
                compiled(source)
            except Exception as error:
                return f"its chat template is broken: {error}"
        if self.source is None:
            return "it has no chat template"
        user = {"role": "user", "content": PROBE}
        refusals = []
        for chat, tools in (
            ([user], None),
            ([{"role": "system", "content": "Be brief."}, user], None),
            ([user], [TOOL]),
        ):
            try:
                shown, _ = self.render(chat, {"tools": tools})
            except InvalidRequest as error:
                refusals.append(str(error))
            else:
                return None if PROBE in shown else "its chat template leaves out what the user says"
        return refusals[0]

    def render(
        self, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any]
    ) -> tuple[str, dict[str, Any]]:
        """Return a prompt, and the variables that it was made from. If the template refuses a system message, its text
        goes before the first user's.

        given: further variables.

        Raise InvalidRequest if the template refuses the messages, whatever its error.
        """
        variables = {"tools": None, "documents": None, **given, "messages": messages}
        variables["add_generation_prompt"] = True
        try:
            return self._render(variables), variables
        except Exception as error:  # a template is a program
            folded = _without_system(messages)
            if folded is not messages:
                try:
                    return self._render(changed := variables | {"messages": folded}), changed
                except Exception:
                    pass
            said = str(error) or type(error).__name__
            raise InvalidRequest(f"the model's chat template refuses these messages: {said}") from None

    def _render(self, variables: Mapping[str, Any]) -> str:
        return compiled(self._source(variables)).render({**self._tokens, **variables})

    def _source(self, variables: Mapping[str, Any]) -> str:
        source = self.source if variables["tools"] is None else self.tool_source
        if source is None:
            raise ValueError("the model has no chat template for chats without tools")
        return source

    def without_answer(self, chat: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a chat that does not end where an answer begins. Raise anything."""
        return self._render(
            {"messages": chat, "tools": None, "documents": None, "add_generation_prompt": False}
        )

    def writes_all(self, marks: Iterable[str], variables: Mapping[str, Any]) -> bool:
        """Return whether no text of a client's can have a part in one of these marks: quickly, and rather no than a
        wrong yes.

        The first letter of a mark is either the template's, which must then have a text that ends within a mark, or
        the client's.
        """
        if self._splits_marks(self._source(variables)):
            return False
        begins = _begins(frozenset(mark[0] for mark in marks))
        return not any(map(begins.search, _texts(variables)))

    def written(self, prompt: str, variables: Mapping[str, Any]) -> list[re.Match[str]]:
        """Return the marks of a prompt in which no letter is a client's; none if that cannot be told.

        The prompt is rendered again from texts that tell where they come from.
        """
        if len(self._letters) > len(HIDING):
            return []
        try:
            shown = self._tracing(self._source(variables)).render(
                {**self._tokens, **_tracked(variables, self._said)}
            )
        except Exception:
            return []
        if shown.translate(self._said.showing) != prompt:
            return []
        return [*self._any_mark.finditer(str.__str__(shown))]

    @cached_property
    def _said(self) -> type[Said]:
        signs = [chr(sign) for sign in HIDING[: len(self._letters)]]
        hiding = str.maketrans(dict(zip(self._letters, signs, strict=True)))
        showing = str.maketrans(dict(zip(signs, self._letters, strict=True)))
        return type("Said", (Said,), {"hiding": hiding, "showing": showing})

    def _splits_marks(self, source: str) -> bool:
        """Return whether a text in the template ends within a mark, so that another text may complete it."""
        if source not in self._splitting:
            parts = [part for text in _literals(source) for part in _FIELD.split(text) if part]
            beginnings = {mark[:n] for mark in self._marks for n in range(1, len(mark))}
            longest = max(map(len, self._marks), default=0)
            self._splitting[source] = any(
                part[-n:] in beginnings for part in parts for n in range(1, min(longest, len(part) + 1))
            )
        return self._splitting[source]

    def _tracing(self, source: str) -> jinja2.Template:
        if source not in self._traced:
            self._traced[source] = _telling(source, self._said)
        return self._traced[source]


def compiled(source: str) -> jinja2.Template:
    """Return a template as transformers compiles it, once. Raise jinja2.TemplateSyntaxError."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return _compile_jinja_template(source)


def either(words: Iterable[str]) -> str:
    """Return a pattern of any of the words, the longest that is possible."""
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True)) or r"(?!)"


@lru_cache(256)
def _begins(letters: frozenset[str]) -> re.Pattern[str]:
    return re.compile(either(letters))


def _literals(source: str) -> Iterator[str]:
    """Yield the texts that a template writes."""
    from jinja2 import nodes

    tree = compiled(source).environment.parse(source)
    yield from (node.data for node in tree.find_all(nodes.TemplateData))
    yield from (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))


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


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a value that a client gives."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            if isinstance(item, str):
                yield item
            elif item:
                yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


class Said(str):
    """Text with letters that a client wrote, in the hands of a template. Its value has signs in their place, which go
    wherever the letters go; compared, searched and cut, it is what the client wrote.

    hiding: sign for each letter of special tokens.
    showing: letter for each sign.
    """

    hiding: ClassVar[Mapping[int, str]] = {}
    showing: ClassVar[Mapping[int, str]] = {}

    @cached_property
    def true(self) -> str:
        """Text as the client wrote it."""
        return self.translate(self.showing)

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self.true)

    def __int__(self) -> int:
        return int(self.true)

    def __float__(self) -> float:
        return float(self.true)

    def __repr__(self) -> str:
        shown = repr(self.true)
        letters = zip(str.__iter__(self), self.true, strict=True)
        parts = [
            sign if sign != letter else "\\" + letter if letter == shown[0] else repr(letter)[1:-1]
            for sign, letter in letters
        ]
        return self._like(shown[0] + "".join(parts) + shown[0])

    def __html__(self) -> str:
        from markupsafe import escape

        letters = zip(str.__iter__(self), self.true, strict=True)
        parts = [
            sign
            if (escaped := str(escape(letter))) == letter
            else escaped
            if sign == letter
            else escaped.translate(self.hiding)
            for sign, letter in letters
        ]
        return "".join(parts)

    def __radd__(self, other: str) -> str:
        return self._like(str.__add__(other, self))

    def __iter__(self) -> Iterator[str]:
        return map(self._like, str.__iter__(self))

    def _like(self, text: str) -> str:
        return type(self)(text)

    def _cut(self, pieces: Iterable[str], gap: int = 0) -> list[str]:
        """Return these pieces of the true text, which come in this order, `gap` letters apart or more."""
        found, at = [], 0
        for piece in pieces:
            at = self.true.index(piece, at)
            found.append(self._like(str.__getitem__(self, slice(at, at + len(piece)))))
            at += len(piece) + gap
        return found

    def split(self, sep: str | None = None, maxsplit: int = -1) -> list[str]:  # type: ignore[override]
        sep = _true(sep)
        return self._cut(self.true.split(sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: int = -1) -> list[str]:  # type: ignore[override]
        sep = _true(sep)
        return self._cut(self.true.rsplit(sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._cut(self.true.splitlines(keepends))

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, mark, after = self._cut(self.true.partition(_true(sep)))
        return before, mark, after

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, mark, after = self._cut(self.true.rpartition(_true(sep)))
        return before, mark, after

    def lstrip(self, chars: str | None = None) -> str:
        return self[len(self) - len(self.true.lstrip(_true(chars))) :]

    def rstrip(self, chars: str | None = None) -> str:
        return self[: len(self.true.rstrip(_true(chars)))]

    def strip(self, chars: str | None = None) -> str:
        return self.rstrip(chars).lstrip(chars)

    def removeprefix(self, prefix: str, /) -> str:
        return self[len(self) - len(self.true.removeprefix(_true(prefix))) :]

    def removesuffix(self, suffix: str, /) -> str:
        return self[: len(self.true.removesuffix(_true(suffix)))]

    def replace(self, old: str, new: str, count: int = -1) -> str:  # type: ignore[override]
        if not old:
            return self._like(str.replace(self, old, new, count))
        return self._like(str.join(new, self.split(old, count)))


def _true(value: Any) -> Any:
    """Return a value as the client wrote it."""
    if isinstance(value, Said):
        return value.true
    return tuple(map(_true, value)) if isinstance(value, tuple) else value


def _asking(name: str) -> Callable[..., Any]:
    """Return a method that asks of the true text."""
    method = getattr(str, name)
    return lambda self, *args: method(self.true, *map(_true, args))


def _making(name: str) -> Callable[..., Any]:
    """Return a method that makes another such text."""
    method = getattr(str, name)

    def made(self: Said, *args: Any) -> Any:
        return self._like(text) if isinstance(text := method(self, *args), str) else text

    return made


def _casing(name: str) -> Callable[..., Any]:
    """Return a method that changes single letters."""
    method = getattr(str, name)

    def cased(self: Said) -> str:
        true = method(self.true)
        if len(true) != len(self):
            return self._like(method(str.__str__(self)))
        signs = zip(str.__iter__(self), self.true, true, strict=True)
        return self._like(
            "".join([new if sign == old else new.translate(self.hiding) for sign, old, new in signs])
        )

    return cased


for _name in (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__"),
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper"),
):
    setattr(Said, _name, _asking(_name))
for _name in (
    "__add__",
    "__getitem__",
    "__mod__",
    "__mul__",
    "__rmul__",
    "center",
    "ljust",
    "rjust",
    "zfill",
    "join",
):
    setattr(Said, _name, _making(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(Said, _name, _casing(_name))


def _tracked(value: Any, said: type[Said]) -> Any:
    """Return a value that a client gives with every text in it as one that tells so, but for messages' roles and
    fields, which are the templates' words."""

    def tracked(value: Any) -> Any:
        if isinstance(value, str):
            return said(value.translate(said.hiding))
        if isinstance(value, Mapping):
            return {tracked(key): tracked(item) for key, item in value.items()}
        return [*map(tracked, value)] if isinstance(value, Sequence) else value

    def message(fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return tracked(fields)
        return {
            key: item if key == "role" and item in ROLES else tracked(item) for key, item in fields.items()
        }

    return {key: [*map(message, item)] if key == "messages" else tracked(item) for key, item in value.items()}


def _telling(source: str, said: type[Said]) -> jinja2.Template:
    """Return a template that keeps the origin of texts: what joins, filters and calls make of them tells it, too."""
    from jinja2.compiler import CodeGenerator

    class Joining(CodeGenerator):
        def visit_Concat(self, node: Any, frame: Any) -> None:
            self.write("concat(map(str, (")
            for each in node.nodes:
                self.visit(each, frame)
                self.write(", ")
            self.write(")))")

    def telling(value: Any) -> Any:
        return said(value) if type(value) is str and _HIDDEN.search(value) else value

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(function)(lambda *args, **named: telling(function(*args, **named)))

    def tojson(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
        text = plain["tojson"](value, **form)
        return _NOT_ASCII.sub(escaped, text) if ensure_ascii else text

    def escaped(match: re.Match[str]) -> str:
        letter = match[0].translate(said.showing)
        return match[0] if letter.isascii() else json.dumps(letter)[1:-1]

    def safe(value: Any) -> Any:
        return plain["safe"](str.__str__(value) if isinstance(value, Said) else value)

    environment = compiled(source).environment.overlay()
    plain = environment.filters
    environment.code_generator_class = Joining
    changed = plain | {"tojson": tojson, "safe": safe}
    environment.filters = {name: wrapped(each) for name, each in changed.items()}
    environment.concat = lambda texts: telling("".join(texts))  # type: ignore[method-assign]
    environment.call = wrapped(environment.call)  # type: ignore[attr-defined]
    return environment.from_string(source)
