"""Structured output: the request's fields that give an answer a form, OpenAI's `response_format` and vLLM's
`structured_outputs`."""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from tandem.app.api.http.errors import grammar_refused
from tandem.app.api.http.forms import StrictForm
from tandem.engine.base import Grammar, InvalidRequest
from tandem.engine.text import grammar as grammars

Source = Annotated[str, Field(min_length=1, max_length=200_000)]
SCHEMA_BYTES = 200_000
"""Length of the longest schema, as JSON."""


def _schema_text(value: Any) -> Any:
    """Return a JSON schema, or its text, as text."""
    if not isinstance(value, dict | bool | str):
        raise ValueError("must be a JSON schema, an object")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


Schema = Annotated[
    str,
    BeforeValidator(_schema_text, json_schema_input_type=dict[str, Any]),
    Field(max_length=SCHEMA_BYTES),
]


class NamedSchema(StrictForm):
    """A JSON schema.

    name: of the schema; it changes nothing.
    description: of the schema; it changes nothing.
    schema: JSON schema that the answer follows.
    strict: whether to refuse a schema with keywords that cannot be enforced; otherwise they are ignored.
    """

    name: str = Field(pattern="^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool = False


class ResponseFormat(StrictForm):
    """The form of an answer in OpenAI's words.

    type: "text" for any text, "json_object" for any JSON object, or "json_schema".
    json_schema: schema of the last kind.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('type "json_schema" needs json_schema, and no other has it')
        return self

    def grammar(self) -> Grammar | None:
        """Return the form; None for any text."""
        if self.json_schema is not None:
            return Grammar("json_schema", self.json_schema.schema_, self.json_schema.strict)
        return None if self.type == "text" else Grammar("json_object")


class StructuredOutputs(StrictForm):
    """The form of an answer in vLLM's words; exactly one.

    json: JSON schema, as an object or as text.
    json_object: any JSON object.
    regex: regular expression that the whole answer matches.
    choice: texts, of which the answer is one.
    grammar: context-free grammar in the notation of Lark or GBNF.
    """

    json_: Schema | None = Field(None, alias="json")
    json_object: bool = False
    regex: Source | None = None
    choice: list[Source] = Field([], max_length=4096)
    grammar_: Source | None = Field(None, alias="grammar")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError("give exactly one of json, json_object, regex, choice and grammar")
        return self

    def grammar(self) -> Grammar:
        """Return the form that was given."""
        return self._given()[0]

    def _given(self) -> list[Grammar]:
        found = [
            self.json_ is not None and Grammar("json_schema", self.json_),
            self.json_object and Grammar("json_object"),
            self.regex is not None and Grammar("regex", self.regex),
            bool(self.choice) and Grammar("choice", json.dumps(self.choice, ensure_ascii=False)),
            self.grammar_ is not None and Grammar("grammar", self.grammar_),
        ]
        return [grammar for grammar in found if grammar]


async def check_grammar(grammar: Grammar, field: str) -> None:
    """Raise ApiError naming the request's field if the grammar does not compile."""
    try:
        await asyncio.to_thread(_checked, grammar)
    except InvalidRequest as error:
        raise grammar_refused(field, str(error)) from None


_checked = lru_cache(256)(grammars.check)  # only those that pass are kept
