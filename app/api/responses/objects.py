"""OpenAI's response object, with the `tandem` extension."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from tandem.app.api.completions.objects import Tandem

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[dict[str, Any]] = []


class ReasoningPart(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputItem(BaseModel):
    """An item that is written as one text."""

    written: ClassVar[str]
    """Name of the events about its text."""

    id: str
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> OutputText | ReasoningPart | None:
        """Return the part of the content that holds the text; None if the item has no content."""
        return None

    @abstractmethod
    def fill(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        """Set the text once it is complete."""


class OutputMessage(OutputItem):
    written: ClassVar[str] = "output_text"

    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    content: list[OutputText] = []

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> OutputText:
        return OutputText(text=text, logprobs=logprobs)

    def fill(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self.content = [self.part(text, logprobs)]


class OutputReasoning(OutputItem):
    written: ClassVar[str] = "reasoning_text"

    type: Literal["reasoning"] = "reasoning"
    summary: list[Any] = []
    content: list[ReasoningPart] = []

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> ReasoningPart:
        return ReasoningPart(text=text)

    def fill(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self.content = [self.part(text, logprobs)]


class OutputCall(OutputItem):
    written: ClassVar[str] = "function_call_arguments"

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str = ""

    def fill(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self.arguments = text


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(BaseModel):
    code: str
    message: str


class InputDetails(BaseModel):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int


class ResponseObject(BaseModel):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: Literal[False] = False
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, str]
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    tandem: Tandem | None = None


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItems(BaseModel):
    """A page of a response's input items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
