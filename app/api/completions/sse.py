"""Server-sent events: an answer's pieces as OpenAI's chunks, written without building objects.

A chunk carries one choice, and the extension beside `choices`:
    "tandem": {"origins": [["draft", 12], ["corrected", 4]]}
as `app.api.completions.objects` describes it; a choice's last chunk (the one with finish_reason) adds "stats" and,
where modes are compared or private parts replaced, "why".
After a failure the last event is {"error": {...}}, and no [DONE] follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tandem.app.api.completions.choice import ChoicePiece
from tandem.app.api.completions.logprobs import chat_logprobs, completion_logprobs
from tandem.app.api.completions.objects import Usage
from tandem.app.api.completions.schema import StreamOptions
from tandem.app.api.http.errors import ApiError
from tandem.app.api.stats.stats import stats
from tandem.app.api.stats.why import why
from tandem.app.api.tools.reader import CallPart
from tandem.engine.text.tokenizer import Tokenizer

PADDED = 64
"""Size in bytes that padded events are a multiple of."""
DONE = b"data: [DONE]\n\n"
_PADDING, _END = b',"obfuscation":"%b"', b"}\n\n"
_AROUND = len(_PADDING % b"" + _END)
_encode = msgspec.json.Encoder().encode


class EventWriter:
    """Writes the chunks of one answer.

    counted: whether every chunk says how many tokens have been used so far.
    """

    def __init__(
        self,
        chat: bool,
        common: dict[str, str | int],
        tokenizer: Tokenizer,
        scored: bool,
        options: StreamOptions,
        prompts: Sequence[Sequence[int]] | None = None,
        replaced: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare what all chunks share.

        chat: whether the answer is a chat's, rather than a text completion.
        common: fields id, created and model.
        scored: whether chunks carry log-probabilities.
        prompts: of the choices, to be sent with their first chunks, and tokens with all; None to send none.
        replaced: number of private parts that were replaced, by kind; None where none should be.
        """
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._head = b"data: " + _encode({"object": kind, **common})[:-1] + b',"choices":['
        self._nothing_yet = b',"usage":null' if options.include_usage else b""
        self.counted = options.include_usage and options.continuous_usage_stats
        self._padded = options.include_obfuscation
        self._chat, self._tokenizer, self._scored = chat, tokenizer, scored
        self._prompts, self._replaced = prompts, replaced
        self._begun: set[int] = set()

    def chunk(self, index: int, piece: ChoicePiece, used: Usage | None = None) -> bytes:
        """Write a piece of choice `index`; a chat's first carries the role as well.

        used: tokens so far, if `counted`.
        """
        first = index not in self._begun
        self._begun.add(index)
        parts = [self._head, b'{"index":%d,' % index, self._text(first, piece)]
        parts += [b',"logprobs":', self._logprobs(piece), b',"finish_reason":', _encode(piece.finish)]
        if self._prompts is None:
            parts.append(b"}]")
        else:
            prompt = b',"prompt_token_ids":' + _encode(self._prompts[index]) if first else b""
            ends = [b"}]", prompt] if self._chat else [prompt, b"}]"]
            parts += [b',"token_ids":', _encode(piece.ids), *ends]
        parts.append(b',"usage":' + used.model_dump_json().encode() if used else self._nothing_yet)
        parts += [b',"tandem":{"origins":', _encode(piece.runs)]
        if piece.stats and piece.reading:
            parts += [b',"stats":', stats([piece.stats], [piece.reading]).model_dump_json().encode()]
            if (reasons := why([piece.stats], self._replaced)) is not None:
                parts += [b',"why":', reasons.model_dump_json().encode()]
        parts.append(b"}")
        if self._padded:
            parts.append(_PADDING % (b"x" * (-(sum(map(len, parts)) + _AROUND) % PADDED)))
        parts.append(_END)
        return b"".join(parts)

    def usage(self, usage: Usage) -> bytes:
        """Write the chunk without choices that `stream_options.include_usage` asks for."""
        return self._head + b'],"usage":' + usage.model_dump_json().encode() + b"}\n\n"

    def _text(self, first: bool, piece: ChoicePiece) -> bytes:
        if not self._chat:
            return b'"text":' + _encode(piece.text)
        role = b'"role":"assistant",' if first else b""
        content = piece.text if piece.text or not (piece.calls or piece.reasoning) else None
        parts = [b'"delta":{', role, b'"content":', _encode(content)]
        if piece.reasoning:
            parts += [b',"reasoning_content":', _encode(piece.reasoning)]
        if piece.calls:
            parts += [b',"tool_calls":', _encode([_call(part) for part in piece.calls])]
        return b"".join([*parts, b"}"])

    def _logprobs(self, piece: ChoicePiece) -> bytes:
        if not self._scored:
            return b"null"
        form = chat_logprobs if self._chat else completion_logprobs
        return _encode(form(piece.scored, self._tokenizer))


def _call(part: CallPart) -> dict[str, Any]:
    """Return OpenAI's form of a new part of a call."""
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def error_event(error: ApiError) -> bytes:
    """Write the event that ends a stream which failed after it had begun."""
    return b"data: " + _encode(error.body()) + b"\n\n"
