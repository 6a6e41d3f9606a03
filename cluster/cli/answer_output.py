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

from cluster.cli.console import citation_line, timings_table, usage_line
from cluster.cli.explanation import hidden_line, in_ms, selection_json, show_context
from cluster.cli.trace_tree import spans_json
from shared.answer import AnswerDone, AnswerEvent, AnswerText, AnswerUsage, Retrieved
from shared.errors import Unavailable
from shared.generation.told import ChosenEvent, MarginEvent, SelectedEvent, TokenEvent
from shared.tracing.kept import KeptSpan


@dataclass(slots=True)
class WholeAnswer:
    """Everything a stream said, once it is complete."""

    hits: Retrieved | None = None
    selections: list[SelectedEvent] = field(default_factory=list)
    texts: list[AnswerText] = field(default_factory=list)
    chosen: dict[int, ChosenEvent] = field(default_factory=dict)
    margins: list[MarginEvent] = field(default_factory=list)
    usage: AnswerUsage | None = None
    request_id: str = ""

    def add(self, event: AnswerEvent) -> None:
        match event:
            case Retrieved():
                self.hits = event
            case SelectedEvent():
                self.selections.append(event)
            case AnswerText():
                self.texts.append(event)
            case ChosenEvent():
                self.chosen[event.question] = event
            case MarginEvent():
                self.margins.append(event)
            case AnswerUsage():
                self.usage = event
            case AnswerDone():
                self.request_id = event.request_id

    def text(self, question: int = 0, sample: int = 0) -> AnswerText:
        return next(t for t in self.texts if (t.question, t.sample) == (question, sample))

    def as_json(self, questions: Sequence[str]) -> dict[str, Any]:
        """Times in milliseconds. Answers among which one was chosen say whether it was they."""
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
                    "score": t.score,
                    **self._choice_of(t),
                    "citations": [
                        dataclasses.asdict(c) | {"conditioned_on": c.conditioned_on} for c in t.citations
                    ],
                }
                for t in sorted(self.texts, key=lambda t: (t.question, t.sample))
            ],
            **({"margins": [dataclasses.asdict(m) for m in self.margins]} if self.margins else {}),
            "search": self.hits.mode.value,
            "hits": [
                {
                    "chunk_id": h.chunk.chunk_id,
                    "document_id": h.document_id,
                    "score": h.score,
                    "text": h.chunk.text,
                }
                for h in self.hits.hits
            ],
            **(
                {"selected": [selection_json(s, self.hits) for s in self.selections]}
                if self.selections
                else {}
            ),
            "usage": dataclasses.asdict(self.usage.usage),
            "timings_ms": in_ms(self.usage.timings),
        }

    def _choice_of(self, text: AnswerText) -> dict[str, Any]:
        chosen = self.chosen.get(text.question)
        if chosen is None:
            return {}
        is_it = chosen.sample == text.sample
        return {
            "chosen": is_it,
            **({"votes": chosen.votes, "final_answer": chosen.answer} if is_it and chosen.votes else {}),
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
    console: Console,
    events: AsyncGenerator[AnswerEvent, None],
    questions: Sequence[str],
    per_question: int,
    stream: bool,
    explain: bool = False,
) -> None:
    """``explain``: then the context, with what was computed anew; then what the answer cost."""
    answer = await show_answer(console, events, questions, per_question, stream)
    usage, hits = answer.usage, answer.hits
    assert usage is not None
    assert hits is not None
    if explain:
        show_context(console, hits, answer.selections, questions, usage.usage.chunk_origins)
    if explain and usage.usage.route:
        console.print()
        console.print(Text(f"replica {usage.usage.route}"), soft_wrap=True)
    console.print()
    for line in filter(None, (usage.usage.note, hidden_line(usage.timings))):
        console.print(Text(line, "yellow" if line == usage.usage.note else "dim"), soft_wrap=True)
    console.print(usage_line(usage.usage), style="dim")
    console.print(timings_table(usage))


async def show_answer(
    console: Console,
    events: AsyncGenerator[AnswerEvent, None],
    questions: Sequence[str],
    per_question: int,
    stream: bool,
) -> WholeAnswer:
    """One branch is written as it comes (``stream``); several are written one by one, each when it is
    finished.

    Raises:
        Unavailable: the stream ended before the answer was whole.
    """
    live = stream and len(questions) * per_question == 1
    answer, told = WholeAnswer(), ""
    async with aclosing(events):
        async for event in events:
            answer.add(event)
            if isinstance(event, TokenEvent) and live:
                told += event.text
                console.print(Text(event.text if told.strip() else ""), end="", soft_wrap=True)
            elif isinstance(event, AnswerText):
                _show_text(console, event, "" if live else _heading(event, questions, per_question), told)
            elif isinstance(event, MarginEvent) and answer.hits is not None:
                _show_margin(console, event, answer.hits)
            elif isinstance(event, ChosenEvent):
                _show_chosen(console, event, answer.text(event.question, event.sample))
    return _checked(answer)


def show_json(
    answer: WholeAnswer,
    questions: Sequence[str],
    trace_id: str = "",
    spans: Sequence[KeptSpan] | None = None,
) -> str:
    """``spans``: of its trace; None: it has none."""
    told = answer.as_json(questions)
    if spans is not None:
        told |= {"trace_id": trace_id, "spans": spans_json(spans)}
    return json.dumps(told, indent=2, ensure_ascii=False)


def _heading(text: AnswerText, questions: Sequence[str], per_question: int) -> str:
    asked = questions[text.question] if len(questions) > 1 else ""
    which = f"[{text.sample + 1} of {per_question}, score {text.score:.3f}]" if per_question > 1 else ""
    return f"{asked} {which}".strip()


def _show_margin(console: Console, margin: MarginEvent, hits: Retrieved) -> None:
    where = hits.hits[margin.chunk].document_id
    console.print(
        Text(f"margin on {where}, {'kept' if margin.kept else 'left out'}: {margin.text.strip()}", "dim"),
        soft_wrap=True,
    )


def _show_chosen(console: Console, chosen: ChosenEvent, text: AnswerText) -> None:
    why = (
        f"{chosen.votes} say “{chosen.answer}”"
        if chosen.votes
        else f"best mean log-probability, {text.score:.3f}"
    )
    console.print(Text(f"chosen: {chosen.sample + 1} ({why})", "bold green"), soft_wrap=True)


def _show_text(console: Console, text: AnswerText, heading: str, told: str) -> None:
    """``told`` is on the screen already; the text may end with more, held back because it might have begun a
    stop string."""
    if heading:
        console.print(Text(heading, "bold"))
    rest = text.text.removeprefix(told) if told else text.text.strip()
    console.print(Text(rest), soft_wrap=True)
    console.print(Text(f"sources: {citation_line(text.citations)}", "dim"), soft_wrap=True)


def _checked(answer: WholeAnswer) -> WholeAnswer:
    if not answer.request_id or answer.usage is None or answer.hits is None:
        raise Unavailable("the answer broke off; what came is not the whole; retry")
    return answer
