"""`kvquilt ask`: a question's events as a person or a program reads them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.console import citation_line, timings_table, usage_line
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Retrieved
from shared.clients.generation import GeneratedToken
from shared.errors import Unavailable


@dataclass(slots=True)
class WholeAnswer:
    """Everything a stream said, once it is complete."""

    hits: Retrieved | None = None
    texts: list[AnswerText] = field(default_factory=list)
    usage: AnswerUsage | None = None
    request_id: str = ""

    def add(self, event: AnswerEvent) -> None:
        match event:
            case Retrieved():
                self.hits = event
            case AnswerText():
                self.texts.append(event)
            case AnswerUsage():
                self.usage = event
            case AnswerDone():
                self.request_id = event.request_id

    def text(self, question: int = 0, sample: int = 0) -> AnswerText:
        return next(t for t in self.texts if (t.question, t.sample) == (question, sample))

    def as_json(self, questions: Sequence[str]) -> dict[str, Any]:
        """Times in milliseconds."""
        assert self.hits is not None
        assert self.usage is not None
        return {
            "request_id": self.request_id,
            "answers": [
                {
                    "question": questions[t.question],
                    "sample": t.sample,
                    "text": t.text.strip(),
                    "finish_reason": t.finish_reason,
                    "citations": [dataclasses.asdict(c) for c in t.citations],
                }
                for t in sorted(self.texts, key=lambda t: (t.question, t.sample))
            ],
            "search": self.hits.mode.value,
            "hits": [
                {"chunk_id": h.chunk.chunk_id, "document_id": h.document_id, "score": h.score, "text": h.chunk.text}
                for h in self.hits.hits
            ],
            "usage": dataclasses.asdict(self.usage.usage),
            "timings_ms": {k.removesuffix("_ms"): round(v, 3) for k, v in dataclasses.asdict(self.usage.timings).items()},
        }


async def collect(events: AsyncGenerator[AnswerEvent, None]) -> WholeAnswer:
    """
    Raises:
        Unavailable: the stream ended before the answer was whole.
    """
    answer = WholeAnswer()
    async with aclosing(events):
        async for event in events:
            answer.add(event)
    return _checked(answer)


async def show(
    console: Console, events: AsyncGenerator[AnswerEvent, None], questions: Sequence[str], branches: int, stream: bool
) -> None:
    """One branch is written as it comes (``stream``); several are written one by one, each when it is finished."""
    live = stream and branches == 1
    answer, told = WholeAnswer(), ""
    async with aclosing(events):
        async for event in events:
            answer.add(event)
            if isinstance(event, GeneratedToken) and live:
                told += event.text
                console.print(Text(event.text if told.strip() else ""), end="", soft_wrap=True)
            elif isinstance(event, AnswerText):
                _show_text(console, event, questions[event.question] if branches > 1 else "", told)
    usage = _checked(answer).usage
    assert usage is not None
    console.print()
    console.print(usage_line(usage), style="dim")
    console.print(timings_table(usage))


def show_json(answer: WholeAnswer, questions: Sequence[str]) -> str:
    return json.dumps(answer.as_json(questions), indent=2, ensure_ascii=False)


def _show_text(console: Console, text: AnswerText, heading: str, told: str) -> None:
    """``told`` is on the screen already; the text may end with more, held back because it might have begun a stop string."""
    if heading:
        console.print(Text(heading, "bold"))
    rest = text.text.removeprefix(told) if told else text.text.strip()
    console.print(Text(rest), soft_wrap=True)
    console.print(Text(f"sources: {citation_line(text.citations)}", "dim"), soft_wrap=True)


def _checked(answer: WholeAnswer) -> WholeAnswer:
    if not answer.request_id or answer.usage is None or answer.hits is None:
        raise Unavailable("the answer broke off; what came is not the whole; retry")
    return answer
