"""Forms the answers of ``/v1/responses``: the search as one item of the output, the message as the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel

from services.gateway.http.heard import AnswerHead, Heard
from services.gateway.http.response_bodies import (
    FileCitation,
    FileSearchCall,
    FoundInFile,
    IncompleteDetails,
    InputDetails,
    OutputDetails,
    OutputMessage,
    OutputRefusal,
    OutputText,
    ResponseBody,
    ResponseEvent,
    ResponseUsage,
    Status,
)
from services.gateway.http.response_requests import ResponseRequest
from services.gateway.kept.members import file_id_of, filename_of
from services.gateway.kept.searching import found_of
from shared.answer import AnswerEvent, AnswerText, AnswerUsage, Citation, Retrieved
from shared.generation.told import FinishReason, TokenEvent
from shared.search import SearchHit

_CALL_AT, _MESSAGE_AT = 0, 1


class ResponseForm:
    """Of one response. ``response_id`` empty: named after the request. ``keep``: keeps it once it is whole,
    and says whether it did; None: it is not kept."""

    def __init__(
        self,
        head: AnswerHead,
        asked: ResponseRequest,
        response_id: str = "",
        keep: Callable[[ResponseBody], Awaitable[bool]] | None = None,
    ) -> None:
        self._head, self._asked, self._keep = head, asked, keep
        self._id = response_id or f"resp_{head.request_id}"
        self._heard = Heard(head)
        self._hits: Sequence[SearchHit] = ()
        self._num_events = 0
        self._said: int | None = None  # characters; None: the message has not begun

    async def complete(self, events: AsyncGenerator[AnswerEvent, None]) -> ResponseBody:
        async with aclosing(events):
            async for event in events:
                self._note(event)
        return await self._whole()

    async def growing(self, events: AsyncGenerator[AnswerEvent, None]) -> AsyncGenerator[ResponseEvent, None]:
        begun = False
        async with aclosing(events):
            async for event in events:
                self._note(event)
                if not begun:
                    begun = True
                    for one in self._begin():
                        yield one
                for one in self._told(event):
                    yield one
                if isinstance(event, AnswerUsage):
                    response = await self._whole()
                    yield self._event(response.status, response=response)

    def _note(self, event: AnswerEvent) -> None:
        self._heard.note(event)
        if isinstance(event, Retrieved):
            self._hits = event.hits

    def _told(self, event: AnswerEvent) -> Iterator[ResponseEvent]:
        match event:
            case Retrieved():
                yield self._event("file_search_call.completed", **self._at_call)
                yield self._event("output_item.done", output_index=_CALL_AT, item=self._call("completed"))
            case TokenEvent() if event.text:
                yield from self._grow(event.text)
            case AnswerText():
                yield from self._end(event)

    # ---- events

    def _begin(self) -> Iterator[ResponseEvent]:
        for name in ("created", "in_progress"):
            yield self._event(name, response=self._response("in_progress", []))
        call = self._call("in_progress", results=False)
        yield self._event("output_item.added", output_index=_CALL_AT, item=call)
        for name in ("in_progress", "searching"):
            yield self._event(f"file_search_call.{name}", **self._at_call)

    def _grow(self, text: str) -> Iterator[ResponseEvent]:
        if self._said is None:
            yield from self._open(OutputText(text="", annotations=[]))
        self._said = (self._said or 0) + len(text)
        yield self._event("output_text.delta", **self._at_part, delta=text, logprobs=[])

    def _end(self, answer: AnswerText) -> Iterator[ResponseEvent]:
        message = self._message(answer)
        (part,) = message.content
        if isinstance(part, OutputRefusal):
            yield from self._open(OutputRefusal(refusal=""))
            yield self._event("refusal.delta", **self._at_part, delta=part.refusal)
            yield self._event("refusal.done", **self._at_part, refusal=part.refusal)
        else:
            if rest := part.text[self._said or 0 :]:
                yield from self._grow(rest)
            elif self._said is None:
                yield from self._open(OutputText(text="", annotations=[]))
            for i, annotation in enumerate(part.annotations):
                at = {**self._at_part, "annotation_index": i}
                yield self._event("output_text.annotation.added", **at, annotation=annotation)
            yield self._event("output_text.done", **self._at_part, text=part.text, logprobs=[])
        yield self._event("content_part.done", **self._at_part, part=part)
        yield self._event("output_item.done", output_index=_MESSAGE_AT, item=message)

    def _open(self, part: OutputText | OutputRefusal) -> Iterator[ResponseEvent]:
        self._said = 0
        message = OutputMessage(id=self._message_id, status="in_progress", content=[])
        yield self._event("output_item.added", output_index=_MESSAGE_AT, item=message)
        yield self._event("content_part.added", **self._at_part, part=part)

    def _event(self, name: str, **members: Any) -> ResponseEvent:
        told = {key: m.model_dump() if isinstance(m, BaseModel) else m for key, m in members.items()}
        self._num_events += 1
        kind = {"type": f"response.{name}", "sequence_number": self._num_events - 1}
        return ResponseEvent({**kind, **told})

    @property
    def _at_call(self) -> dict[str, Any]:
        return {"output_index": _CALL_AT, "item_id": self._call_id}

    @property
    def _at_part(self) -> dict[str, Any]:
        return {"output_index": _MESSAGE_AT, "item_id": self._message_id, "content_index": 0}

    # ---- objects

    @property
    def _call_id(self) -> str:
        return f"fs_{self._head.request_id}"

    @property
    def _message_id(self) -> str:
        return f"msg_{self._head.request_id}"

    async def _whole(self) -> ResponseBody:
        response = self._ended()
        if self._keep is None or await self._keep(response):
            return response
        return response.model_copy(update={"store": False})

    def _ended(self) -> ResponseBody:
        (answer,) = self._heard.texts
        return self._response(_status_of(answer), [self._call("completed"), self._message(answer)])

    def _call(self, status: Any, results: bool = True) -> FileSearchCall:
        found = [_found(hit) for hit in self._hits] if results and self._asked.with_results else None
        return FileSearchCall(id=self._call_id, status=status, queries=list(self._queries), results=found)

    @property
    def _queries(self) -> Sequence[str]:
        """Until they are known, and if nothing is searched, the question."""
        return self._heard.queries or (self._asked.question,)

    def _message(self, answer: AnswerText) -> OutputMessage:
        part: OutputText | OutputRefusal
        if self._head.refuses(answer):
            part = OutputRefusal(refusal=answer.text)
        else:
            cited = [_cited(citation, len(answer.text)) for citation in answer.citations]
            part = OutputText(text=answer.text, annotations=cited)
        return OutputMessage(id=self._message_id, status=_status_of(answer), content=[part])

    def _response(self, status: Status, output: list[FileSearchCall | OutputMessage]) -> ResponseBody:
        asked, over = self._asked, status != "in_progress"
        usage = self._heard.cost.usage
        return ResponseBody(
            id=self._id,
            created_at=self._head.created,
            status=status,
            incomplete_details=IncompleteDetails() if status == "incomplete" else None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            model=self._head.model,
            output=output,
            previous_response_id=asked.previous_response_id,
            store=self._keep is not None,
            temperature=asked.temperature or 0.0,
            text={"format": _format(asked)},
            tool_choice=asked.tool_choice or "auto",
            tools=[tool.model_dump(exclude_unset=True) for tool in asked.tools or ()],
            top_p=1.0 if asked.top_p is None else asked.top_p,
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputDetails(cached_tokens=usage.reused_tokens),
                output_tokens=usage.generated_tokens,
                output_tokens_details=OutputDetails(),
                total_tokens=usage.prompt_tokens + usage.generated_tokens,
            )
            if over
            else None,
            kvquilt=self._heard.extension if over else None,
        )


def _status_of(answer: AnswerText) -> Status:
    return "incomplete" if answer.finish_reason is FinishReason.LENGTH else "completed"


def _cited(citation: Citation, index: int) -> FileCitation:
    document_id = citation.document_id
    return FileCitation(index=index, file_id=file_id_of(document_id), filename=filename_of(document_id))


def _found(hit: SearchHit) -> FoundInFile:
    found = found_of(hit)
    return FoundInFile(
        file_id=found.file_id,
        filename=found.filename,
        score=found.score,
        text=found.text,
        attributes=dict(found.attributes),
    )


def _format(asked: ResponseRequest) -> dict[str, Any]:
    given = asked.text.format if asked.text is not None else None
    return {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_unset=True)
