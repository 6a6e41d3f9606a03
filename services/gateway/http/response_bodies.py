"""Defines the objects of ``/v1/responses``: what is answered, its items, and the events of its stream."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, RootModel

from services.gateway.http.heard import Extension

Status = Literal["in_progress", "completed", "incomplete"]


class FileCitation(BaseModel):
    """``index``: characters in front of it: all, since the answer as a whole was read from its sources."""

    type: Literal["file_citation"] = "file_citation"
    index: int
    file_id: str
    filename: str


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[FileCitation]
    logprobs: list[Any] = []


class OutputRefusal(BaseModel):
    type: Literal["refusal"] = "refusal"
    refusal: str


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText | OutputRefusal]


class FoundInFile(BaseModel):
    """``score``: how near the chunk is to the question, 0 to 1."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: dict[str, Any]


class FileSearchCall(BaseModel):
    """``results``: null where the request does not include them."""

    id: str
    type: Literal["file_search_call"] = "file_search_call"
    status: Literal["in_progress", "searching", "completed"]
    queries: list[str]
    results: list[FoundInFile] | None


class InputDetails(BaseModel):
    cached_tokens: int


class OutputDetails(BaseModel):
    reasoning_tokens: Literal[0] = 0


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseBody(BaseModel):
    """``store``: it is kept. ``usage`` and ``kvquilt`` null: it is not over."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[FileSearchCall | OutputMessage]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    kvquilt: Extension | None = None

    @property
    def text_of_answer(self) -> str:
        """What was said, or why nothing was."""
        parts = [part for item in self.output if isinstance(item, OutputMessage) for part in item.content]
        return "".join(part.refusal if isinstance(part, OutputRefusal) else part.text for part in parts)


class ResponseEvent(RootModel[dict[str, Any]]):
    """One event of a stream; every kind has members of its own."""

    @property
    def event_name(self) -> str:
        return str(self.root["type"])
