"""Holds a conversation with a collection, a line at a time: questions with what was said earlier, and
commands about them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TextIO

from rich.text import Text

from cluster.cli.answer_output import WholeAnswer, collect, show_answer
from cluster.cli.console import usage_line
from cluster.cli.session import Session, exit_code
from shared.answer import AnswerEvent, Inquiry
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import Cancelled, ContextTooLong, InvalidRequest, KvquiltError
from shared.generation.modes import Recompute
from shared.generation.orders import mode_named

Ask = Callable[[Inquiry], AsyncGenerator[AnswerEvent, None]]
HELP = """/mode [MODE [RATIO]]  how the context's KV is reused from now on, and the part that is computed anew
/sources              the passages that the last answer was read from
/clear                forget what was said
/help                 this list
/quit                 the end, as Ctrl-D; Ctrl-C ends an answer"""


@dataclass(slots=True)
class Dialogue:
    """``asked``: what all questions have in common. An answer that was not whole leaves no turn."""

    asked: Inquiry
    turns: list[EarlierTurn] = field(default_factory=list)
    last: WholeAnswer | None = None

    def inquiry(self, question: str) -> Inquiry:
        return replace(self.asked, questions=(question,), turns=tuple(self.turns))

    def answered(self, question: str, answer: WholeAnswer) -> None:
        self.last = answer
        said = answer.text().text.strip()
        self.turns += [EarlierTurn(Speaker.USER, question), EarlierTurn(Speaker.ASSISTANT, said)]

    def clear(self) -> int:
        """Returns how many questions are forgotten."""
        num = len(self.turns) // 2
        self.turns, self.last = [], None
        return num

    def use(self, mode: str, ratio: str = "") -> None:
        """
        Raises:
            InvalidRequest: there is no such mode, or the ratio is no number from 0 to 1.
        """
        chosen = mode_named(mode, "/mode")
        try:
            recompute = Recompute(float(ratio) if ratio else None)
        except ValueError:
            raise InvalidRequest(f"/mode: the ratio {ratio!r} is no number from 0 to 1") from None
        self.asked = replace(self.asked, reuse=replace(self.asked.reuse, mode=chosen, recompute=recompute))

    @property
    def way(self) -> dict[str, str | float | None]:
        reuse = self.asked.reuse
        return {"mode": str(reuse.mode) if reuse.mode else None, "ratio": reuse.recompute.ratio}


class ChatLoop:
    """``ask``: begins an answer. ``runner``: Ctrl-C ends what it runs, and no more."""

    def __init__(self, session: Session, runner: asyncio.Runner, ask: Ask, conversation: Dialogue) -> None:
        self._session, self._runner, self._ask, self._talk = session, runner, ask, conversation

    def follow(self, lines: Iterator[str]) -> int:
        """Until they end, or say `/quit`. Returns the exit code: of the first that failed."""
        failed = 0
        for line in map(str.strip, lines):
            if line == "/quit":
                break
            try:
                if line.startswith("/"):
                    self._command(*line[1:].split())
                elif line:
                    self._question(line)
            except KvquiltError as error:
                self._session.tell_error(error)
                failed = failed or exit_code(error)
            except KeyboardInterrupt:
                self._session.out.print()
                self._session.tell_error(Cancelled("the answer was ended; it is not a part of what was said"))
        return failed

    def _question(self, question: str) -> None:
        inquiry = self._talk.inquiry(question)
        try:
            answer = self._runner.run(self._answer(inquiry))
        except ContextTooLong as error:
            if not inquiry.turns:
                raise
            raise ContextTooLong(f"{error.detail}; /clear forgets what was said") from None
        self._talk.answered(question, answer)
        if self._session.as_json:
            self._session.tell_line(answer.as_json([question]))
            return
        assert answer.usage is not None
        usage = answer.usage.usage
        line = f"{usage.reuse}: {usage_line(usage)}" if usage.reuse else usage_line(usage)
        for told in filter(None, (usage.note, line)):
            self._session.out.print(Text(told, "yellow" if told == usage.note else "dim"), soft_wrap=True)

    async def _answer(self, inquiry: Inquiry) -> WholeAnswer:
        events = self._ask(inquiry)
        if self._session.as_json:
            return await collect(events)
        return await show_answer(self._session.out, events, inquiry.questions, 1, stream=True)

    def _command(self, name: str = "", *words: str) -> None:
        talk = self._talk
        match name, *words:
            case ["help"]:
                self._told({"help": HELP.splitlines()}, HELP)
            case ["clear"]:
                num = talk.clear()
                self._told({"cleared": num}, f"forgotten: {num} questions and their answers")
            case ["sources"]:
                self._sources()
            case ["mode"]:
                self._told(talk.way, self._way())
            case ["mode", mode]:
                talk.use(mode)
                self._told(talk.way, self._way())
            case ["mode", mode, ratio]:
                talk.use(mode, ratio)
                self._told(talk.way, self._way())
            case _:
                raise InvalidRequest(f"{' '.join(['/' + name, *words])}: there is no such command; try /help")

    def _way(self) -> str:
        way = self._talk.way
        ratio = f", {way['ratio']:g} of the tokens computed anew" if way["ratio"] is not None else ""
        return f"mode: {way['mode'] or 'as configured'}{ratio}"

    def _sources(self) -> None:
        last = self._talk.last
        hits = last.hits.hits if last is not None and last.hits is not None else ()
        if self._session.as_json:
            names = ("document_id", "title", "score")
            rows = [
                {name: getattr(hit, name) for name in names}
                | {"heading": hit.chunk.heading, "chunk_id": hit.chunk.chunk_id, "text": hit.chunk.text}
                for hit in hits
            ]
            self._session.tell_line({"sources": rows})
            return
        for number, hit in enumerate(hits):
            where = f"{hit.document_id} ({hit.chunk.heading})" if hit.chunk.heading else hit.document_id
            self._session.out.print(Text(f"[{number + 1}] {where}", "bold"), soft_wrap=True)
            self._session.out.print(Text(hit.chunk.text.strip(), "dim"), soft_wrap=True)
        if not hits:
            self._session.out.print("there is no answer yet")

    def _told(self, value: object, text: str) -> None:
        if self._session.as_json:
            self._session.tell_line(value)
        else:
            self._session.out.print(Text(text), soft_wrap=True)


def lines_of(file: TextIO, prompt: str = "> ") -> Iterator[str]:
    """Of a terminal with a prompt, and with the line editing that there is; Ctrl-C begins the line anew."""
    if not file.isatty():
        yield from file
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() uses it
    while True:
        try:
            yield input(prompt)
        except EOFError:
            print(file=sys.stdout)
            return
        except KeyboardInterrupt:
            print(file=sys.stdout)
