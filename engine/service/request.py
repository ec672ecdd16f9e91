"""The bodies of requests to a service."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tandem.engine.base import Grammar, InvalidRequest, Sampling
from tandem.engine.service.chats import ChatReader
from tandem.engine.service.config import ServiceConfig
from tandem.engine.text.tokenizer import Tokenizer
from tandem.engine.translated.engine import unfinished_bytes

MOST_SEED = 2**31
"""Above the seeds that services take."""
STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of two output positions: what continues an answer shall not repeat its beginning's chances."""
DEFAULTS = Sampling()
OPENAI = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "stop", "seed")
HERE = ("stop_tokens", "reader_rate", "waited_s", "logprobs", "forced", "grammar", "trace")
"""Fields that never go to a service by a name of their own."""
CHANCES = ("top_k", "min_p")
"""Fields that greedy sampling does without."""
BEYOND = tuple(name for name in Sampling.__struct_fields__ if name not in OPENAI + HERE)
"""Fields that OpenAI's API lacks."""


class RequestWriter:
    """Writes requests for sessions: this side's tokens as text."""

    def __init__(self, config: ServiceConfig, tokenizer: Tokenizer) -> None:
        """Raise ValueError if the tokenizer knows no chats and the service takes nothing else."""
        self._config, self._tokenizer = config, tokenizer
        self._chats = ChatReader(tokenizer) if config.route == "chat" else None

    def write(
        self, prompt: Sequence[int], output: Sequence[int], sampling: Sampling, most: int | None = None
    ) -> tuple[dict[str, Any], bytes]:
        """Return the body of the request that continues prompt and output, and the bytes at the output's end that
        begin a character, which the service says anew. Raise InvalidRequest for what it cannot do.

        most: most tokens of the answer; None for all that may come.
        """
        texts, begun = self._texts(prompt, output)
        left = sampling.max_tokens - len(output)
        body = texts | {
            "model": self._config.model,
            "max_tokens": left if most is None else min(most, left),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._chances(sampling, len(output)),
            **({} if output else self.form(sampling.grammar)),
            **self._config.options,
        }
        return {name: value for name, value in body.items() if value is not None}, begun

    def form(self, grammar: Grammar | None) -> dict[str, Any]:
        """Return the field that asks for a form; none for any text. Raise InvalidRequest for a form that it cannot ask
        for. The continuation of an answer is not asked for it: the service would begin the form anew."""
        if grammar is None:
            return {}
        if not self._config.structured:
            raise InvalidRequest(f"the service of {self._config.model} knows no grammars")
        match grammar.kind, self._config.structured:
            case "json_object", True:
                return {"response_format": {"type": "json_object"}}
            case "json_schema", True:
                schema = {"name": "answer", "schema": json.loads(grammar.source), "strict": grammar.strict}
                return {"response_format": {"type": "json_schema", "json_schema": schema}}
            case "json_object", "json_schema":
                return {"json_schema": {"type": "object"}}
            case "json_schema", "json_schema":
                return {"json_schema": json.loads(grammar.source)}
        kind = grammar.kind.replace("_", " ")
        raise InvalidRequest(f"the service of {self._config.model} knows no form {kind}, only JSON")

    def _texts(self, prompt: Sequence[int], output: Sequence[int]) -> tuple[dict[str, Any], bytes]:
        if self._chats is None:
            text, begun = _whole(self._tokenizer.written([*prompt, *output]))
            return {"prompt": text}, begun
        messages: list[dict[str, Any]] = [*self._chats.messages(prompt)]
        if not output:
            return {"messages": messages}, b""
        text, begun = _whole(self._tokenizer.shown_bytes(output))
        answer: dict[str, Any] = {"role": "assistant", "content": text}
        match self._config.prefix:
            case "assistant":
                return {"messages": [*messages, answer]}, begun
            case "continue_final_message":
                options = {"add_generation_prompt": False, "continue_final_message": True}
                return {"messages": [*messages, answer], **options}, begun
            case "prefix":
                return {"messages": [*messages, {**answer, "prefix": True}]}, begun
        raise InvalidRequest(f"the service of {self._config.model} cannot continue an answer")

    def _chances(self, sampling: Sampling, position: int) -> dict[str, Any]:
        """Return the fields of the choice of tokens. Raise InvalidRequest for what the service lacks."""
        if sampling.logprobs >= 0 or sampling.forced:
            raise InvalidRequest(
                f"the service of {self._config.model} gives no log-probabilities of these tokens"
            )
        body: dict[str, Any] = {
            "temperature": sampling.temperature,
            "presence_penalty": sampling.presence_penalty or None,
            "frequency_penalty": sampling.frequency_penalty or None,
            "stop": list(sampling.stop) or None,
        }
        if not sampling.greedy:
            body["top_p"] = None if sampling.top_p == 1.0 else sampling.top_p
            body["seed"] = (sampling.seed + STRIDE * position) % MOST_SEED
        for name in BEYOND:
            value = getattr(sampling, name)
            if value == getattr(DEFAULTS, name) or (sampling.greedy and name in CHANCES):
                continue
            if (theirs := self._config.extensions.get(name)) is None:
                raise InvalidRequest(f"the service of {self._config.model} knows no {name}")
            body[theirs] = max(0, value - position) if name == "min_tokens" else value
        return body


def _whole(data: bytes) -> tuple[str, bytes]:
    """Return the text, and the bytes at its end that are half a character."""
    end = len(data) - unfinished_bytes(data)
    return data[:end].decode("utf-8", "replace"), data[end:]
