"""Requests: OpenAI's chat and text completions, with the `tandem` extension.

A field that would change the answer and is not implemented is refused, never ignored: see `app.api.http.fields`.
"""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, model_validator

from tandem.app.api.http.errors import no_effort
from tandem.app.api.http.fields import drop_unused
from tandem.app.api.http.forms import StrictForm
from tandem.app.api.http.settings import Privacy
from tandem.app.api.structured.forms import ResponseFormat, StructuredOutputs
from tandem.app.api.tools.forms import MOST, Tool, ToolChoice
from tandem.deployments.modes import AUTO, MODES
from tandem.deployments.modes.cloud import CloudMode
from tandem.deployments.modes.sections import with_options
from tandem.engine.base import Grammar, Sampling
from tandem.policies.routing.objectives import OBJECTIVES, Leaves, Objective


def _content(value: Any) -> Any:
    """Join a message's content if it is a list of text parts."""
    if not isinstance(value, list):
        return value
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                'every part must be {"type": "text", "text": "…"}; other kinds are not supported'
            )
    return "".join(part["text"] for part in value)


def _prompts(value: Any) -> list[str | list[int]]:
    """Make a list of prompts from a text, token ids, or a list of either."""
    prompts = [value] if isinstance(value, str) or _is_ids(value) else value
    if not isinstance(prompts, list) or not all(isinstance(p, str) or _is_ids(p) for p in prompts):
        raise ValueError("must be a text, token ids, or a list of either")
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(i) is int and i >= 0 for i in value)


class FunctionCall(StrictForm):
    name: str
    arguments: str


class ToolCall(StrictForm):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(StrictForm):
    """A message of a chat.

    content: text, or a list of text parts.
    tool_calls, refusal, reasoning_content: of an assistant's earlier answer, perhaps another model's.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_content)] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = Field([])
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_annotations(cls, data: Any) -> Any:
        """Drop annotations, which are notes on the text for people."""
        return {k: v for k, v in data.items() if k != "annotations"} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise ValueError("content may only be null where an assistant has tool_calls or a refusal")
        if self.role == "tool" and self.tool_call_id is None:
            raise ValueError("a tool's message needs tool_call_id")
        return self

    @property
    def characters(self) -> int:
        """Approximate length of what the chat template writes."""
        calls = sum(len(call.function.name) + len(call.function.arguments) for call in self.tool_calls)
        return len(self.content or self.refusal or "") + calls

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates expect it: role "system" for "developer", and a call's arguments as an
        object."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or self.refusal or "",
        }
        if self.tool_calls:
            message["tool_calls"] = [
                call.model_dump() | {"function": {"name": f.name, "arguments": _object(f.arguments)}}
                for call in self.tool_calls
                for f in [call.function]
            ]
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.role == "tool":
            message["tool_call_id"] = self.tool_call_id
        return message


def _object(arguments: str) -> Any:
    """Parse the JSON object that a model wrote; its text if it is none."""
    try:
        read = json.loads(arguments)
    except ValueError:
        return arguments
    return read if isinstance(read, dict) else arguments


class StreamOptions(StrictForm):
    """Options of a stream.

    include_usage: send the usage in a last chunk.
    continuous_usage_stats: send it in every chunk as well; needs include_usage, as in vLLM.
    include_obfuscation: pad chunks, so that their sizes do not reveal the text.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


EFFORT = "reasoning_effort"
"""Variable of chat templates."""
DeviceName = Annotated[str, Field(min_length=1, max_length=128)]


class ObjectiveForm(StrictForm):
    """Worth of what counts for a request whose mode is left open, in dollars, and limits that no choice may exceed.

    prefer: objective whose values stand where the others are left out.
    second_usd: worth of a second that the reader waits.
    quality_usd: worth of an answer's whole quality.
    ttft_s: greatest expected seconds to the first token; where nothing is so quick, the quickest is chosen.
    usd: greatest expected cost.
    min_quality: least expected quality, the target's own being 1.
    privacy: most that may leave the device: nothing, hidden_states or text.
    """

    prefer: Literal["balanced", "fast", "cheap", "private"] = "balanced"
    second_usd: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    quality_usd: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    ttft_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    usd: float | None = Field(None, ge=0, allow_inf_nan=False)
    min_quality: float | None = Field(None, ge=0, le=1)
    privacy: Literal["nothing", "hidden_states", "text"] | None = None

    def objective(self) -> Objective:
        """Return the objective that the policies know."""
        said = {key: value for key, value in self if key != "prefer" and value is not None}
        if self.privacy is not None:
            said["privacy"] = Leaves[self.privacy.upper()]
        return replace(OBJECTIVES[self.prefer], **said)


NamedObjective = Annotated[
    ObjectiveForm, BeforeValidator(lambda value: {"prefer": value} if isinstance(value, str) else value)
]
"""An objective, or the name of one."""


@with_options(MODES.values())
class TandemOptions(StrictForm):
    """Options for sharing the work between edge and cloud; the server's policies decide what is left out. The modes add
    theirs.

    mode: one of `deployments.modes.MODES`; left out, or "auto": what the server's collaboration policy chooses.
    device: a name from /v1/devices, several to pick from, or "any".
    reader_rate: tokens/s that the reader takes in.
    paced: whether to deliver the stream no faster than `reader_rate`.
    budget: in races, share of prompt tokens for the constrained endpoint; at most the key's.
    exchange_rate: dollars that a joule of the device is worth; at most the key's.
    resumable: whether the stream goes on for a while without its client, who may come back to it.
    privacy: "replaced" to put stand-ins in the place of names, addresses and numbers before the request leaves this API
        and take them out of the answer again, or "as_is"; the server's setting `api.privacy` decides if it is left out.
    objective: what counts where the mode is left open, or the name of one; needs the collaboration policy `auto`.
    """

    mode: Annotated[str | None, BeforeValidator(lambda value: None if value == AUTO else value)] = Field(
        default=None, min_length=1, max_length=64
    )
    device: Annotated[
        tuple[DeviceName, ...] | None,
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    ] = Field(default=None, min_length=1, max_length=16, strict=False)
    reader_rate: float | None = Field(default=None, gt=0, le=10_000, allow_inf_nan=False)
    paced: bool = False
    budget: float | None = Field(default=None, ge=0, le=1)
    exchange_rate: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    resumable: bool = False
    privacy: Privacy | None = None
    objective: NamedObjective | None = None

    def check(self, stream: bool) -> None:
        """Raise ValueError for options that a stream alone may have, where it is none."""
        for name in ("paced", "resumable"):
            if getattr(self, name) and not stream:
                raise ValueError(f"tandem.{name} is only allowed where stream is true")

    @property
    def named(self) -> str | tuple[str, ...] | None:
        """The device if there is one, else those to pick from; None if none is named."""
        return self.device[0] if self.device is not None and len(self.device) == 1 else self.device


TokenId = Annotated[int, Field(ge=0, lt=2**32)]
TokenName = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
"""A token's id as a key of a JSON object."""


class AnswerForm(StrictForm):
    """A request for an answer.

    priority: among the account's requests that wait for room, the lowest first.
    """

    priority: int = Field(0, ge=-(2**31), lt=2**31)
    tandem: TandemOptions = TandemOptions()


class Generation(AnswerForm):
    """Fields of both endpoints. Penalties, top_k, min_p and min_tokens are as in vLLM; top_k of -1 or 0 is off.

    return_token_ids: whether to return the tokens of prompts and answers, too.
    prompt_logprobs: number of alternatives to each of the prompt's tokens, in mode cloud.
    """

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field([], max_length=4)
    n: int = Field(1, ge=1, le=128)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31)
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = Field([], max_length=64)
    min_tokens: int = Field(0, ge=0)
    logit_bias: dict[TokenName, Annotated[float, Field(ge=-100, le=100)]] = Field({}, max_length=1024)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    prompt_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="before")
    @classmethod
    def _drop_what_asks_for_nothing(cls, data: Any) -> Any:
        return drop_unused(data, cls.model_fields) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options_belong_to_streams(self) -> Generation:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is only allowed where stream is true")
        self.tandem.check(self.stream)
        return self

    @model_validator(mode="after")
    def _has_one_form(self) -> Generation:
        if self.structured_outputs is not None and self.response_format and self.response_format.grammar():
            raise ValueError("response_format and structured_outputs both give the answer a form")
        if self.ignore_eos and self.form() is not None:
            raise ValueError("ignore_eos cannot be with a form, which tells the answer's end")
        return self

    @model_validator(mode="after")
    def _scores_prompts_where_possible(self) -> Generation:
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is only allowed where stream is false")
        if self.scored and self.tandem.mode not in (None, CloudMode.name):
            raise ValueError(f"prompts are scored in mode {CloudMode.name} only")
        return self

    def form(self) -> tuple[str, Grammar] | None:
        """Return the answer's form and the field that gives it; None if it has none."""
        if self.structured_outputs is not None:
            return "structured_outputs", self.structured_outputs.grammar()
        grammar = self.response_format and self.response_format.grammar()
        return ("response_format", grammar) if grammar else None

    @property
    def answers(self) -> int:
        """Number of answers to each prompt that are made."""
        return self.n

    @property
    def scored(self) -> bool:
        """Whether to compute log-probabilities of the prompt's tokens, too."""
        return self.prompt_logprobs is not None

    @property
    def echoes_scores(self) -> bool:
        """Whether answers begin with the prompt's tokens and their log-probabilities."""
        return False

    @property
    def streaming(self) -> StreamOptions:
        """Options of the stream, defaults if none are given."""
        return self.stream_options or StreamOptions()

    def wanted_tokens(self) -> int | None:
        """Return the limit on a choice's output tokens that the client set; None if it set none."""
        return self.max_tokens

    @property
    def limit_field(self) -> str:
        """Return the name of the field that sets `wanted_tokens`."""
        return "max_tokens"

    @abstractmethod
    def wanted_logprobs(self) -> int:
        """Return the number of alternatives to each token, as `Sampling.logprobs`; -1 for no log-probabilities."""

    def sampling(self, room: int, recommended: Mapping[str, Any]) -> Sampling:
        """Return the first choice's sampling, without its form; choice i adds i to the seed.

        room: tokens that the context leaves.
        recommended: fields of `Sampling` that count where the request names none.
        """
        seed = secrets.randbits(62) if self.seed is None else self.seed % 2**63
        unnamed = {name: value for name, value in recommended.items() if name not in self.model_fields_set}
        asked = Sampling(
            max_tokens=self.wanted_tokens() or room,
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=seed,
            stop=tuple(self.stop),
            stop_tokens=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=max(
                self.wanted_logprobs(), -1 if self.prompt_logprobs is None else self.prompt_logprobs
            ),
            min_tokens=self.min_tokens,
            min_p=self.min_p,
            logit_bias=tuple((int(token), bias) for token, bias in self.logit_bias.items()),
        )
        return msgspec.structs.replace(asked, **unnamed)


class ChatRequest(Generation):
    """A chat. reasoning_effort: how much a model thinks whose chat template reads it."""

    prompt_field: ClassVar[str] = "messages"
    effort_field: ClassVar[str] = "reasoning_effort"

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field({})
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    tools: list[Tool] = Field([], max_length=MOST)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _tools_fit_together(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools]
        choice = self.tool_choice
        if len(set(names)) < len(names):
            raise ValueError("two tools have the same name")
        if choice is not None and not names and choice.type not in ("none", "auto"):
            raise ValueError("tool_choice needs tools")
        if choice is not None and choice.function is not None and choice.function.name not in names:
            raise ValueError(f"tool_choice names {choice.function.name!r}, and there is no such tool")
        if names and self.structured_outputs is not None:
            raise ValueError("structured_outputs cannot be with tools; response_format can")
        if names and self.ignore_eos and choice is not None and choice.type not in ("none", "auto"):
            raise ValueError("ignore_eos cannot be with a tool that has to be called")
        return self

    @model_validator(mode="after")
    def _alternatives_need_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        return self

    def wanted_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    def wanted_logprobs(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    def chat(self) -> list[dict[str, Any]]:
        """Return the messages for the chat template."""
        return [message.for_template() for message in self.messages]

    def variables(self, template: str | None) -> dict[str, Any]:
        """Return the chat template's variables. Raise ApiError for an effort that the template does not read."""
        if self.reasoning_effort is None:
            return self.chat_template_kwargs
        if EFFORT not in (template or ""):
            raise no_effort(self.effort_field)
        return {EFFORT: self.reasoning_effort} | self.chat_template_kwargs


class CompletionRequest(Generation):
    """A text completion. suffix: text behind the answer, for models with tokens for filling in."""

    prompt_field: ClassVar[str] = "prompt"

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts)] = Field(min_length=1, max_length=128)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    best_of: int | None = Field(None, ge=1, le=128)
    suffix: str = ""

    @model_validator(mode="after")
    def _possible_together(self) -> CompletionRequest:
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in self.prompt)):
            raise ValueError("suffix needs prompts that are text, without echo")
        if self.best_of is not None and self.best_of < self.n:
            raise ValueError("best_of must be at least n")
        if self.answers > self.n and self.stream:
            raise ValueError("best_of beyond n is only allowed where stream is false")
        if len(self.prompt) * self.answers > 128:
            raise ValueError("prompts times n, or best_of, must not exceed 128")
        return self

    @property
    def answers(self) -> int:
        return self.best_of or self.n

    @property
    def scored(self) -> bool:
        return super().scored or self.echoes_scores

    @property
    def echoes_scores(self) -> bool:
        return self.echo and self.logprobs is not None

    def sampling(self, room: int, recommended: Mapping[str, Any]) -> Sampling:
        sampling = super().sampling(room, recommended)
        ranked = self.answers > self.n and sampling.logprobs < 0
        return msgspec.structs.replace(sampling, logprobs=0) if ranked else sampling

    def wanted_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs
