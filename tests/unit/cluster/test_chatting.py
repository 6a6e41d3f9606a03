"""`kvquilt chat` without services: turns, commands, errors, and Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from cluster.cli.chatting import ChatLoop, Dialogue, lines_of
from cluster.cli.session import Session
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    Citation,
    Inquiry,
    Retrieved,
)
from shared.earlier_turns import EarlierTurn, Speaker
from shared.errors import ContextTooLong, KvquiltError, Unavailable
from shared.generation.modes import Recompute, ReuseMode
from shared.generation.orders import Auto
from shared.generation.told import FinishReason, Timings, TokenEvent, Usage
from shared.search import IndexedChunk, SearchHit, SearchMode

HIT = SearchHit(
    IndexedChunk("c1", "Orla Venn built it", (1, 2), heading="History"), "bridge.txt", "Bridge", "f", 0.5
)


class Answerer:
    """Answers in turn; what is an error is raised after the first token. ``interrupts``: as Ctrl-C does, at
    the answer with this number, which then never ends."""

    def __init__(self, *answers: str | KvquiltError, interrupts: int = -1) -> None:
        self.asked: list[Inquiry] = []
        self.num_closed = 0
        self._answers, self._interrupts = list(answers), interrupts

    async def __call__(self, inquiry: Inquiry) -> AsyncGenerator[AnswerEvent, None]:
        self.asked.append(inquiry)
        answer = self._answers[len(self.asked) - 1]
        try:
            yield Retrieved((HIT,), SearchMode.DENSE)
            if len(self.asked) - 1 == self._interrupts:
                yield TokenEvent(0, 0, 1, " never", -0.1)
                signal.raise_signal(signal.SIGINT)
                await asyncio.Event().wait()
            if isinstance(answer, KvquiltError):
                raise answer
            yield TokenEvent(0, 0, 1, f" {answer}", -0.1)
            cited = Citation("bridge.txt", "Bridge", "c1", 0, "History")
            yield AnswerText(0, 0, f" {answer}", FinishReason.STOP, (cited,))
            yield AnswerUsage(Usage(50, 40, 10, 2, reuse=ReuseMode.REORDERED), Timings())
            yield AnswerDone("r1")
        finally:
            self.num_closed += 1


class Talked:
    def __init__(self, answerer: Answerer, *lines: str, as_json: bool = False) -> None:
        out, err = io.StringIO(), io.StringIO()
        consoles = Console(file=out, width=200), Console(file=err, width=200)
        session = Session(Path("nowhere"), False, "h:1", "", *consoles)
        self.dialogue = Dialogue(Inquiry("docs", ()))
        with asyncio.Runner() as runner:
            chat = ChatLoop(session.for_programs() if as_json else session, runner, answerer, self.dialogue)
            self.code = chat.follow(iter(lines))
        self.out, self.err = out.getvalue(), err.getvalue()


def test_answers_are_streamed_with_their_sources_and_what_they_cost() -> None:
    talked = Talked(Answerer("Orla Venn"), "Who built it?")
    assert talked.out.count("Orla Venn") == 1
    assert "sources: bridge.txt (History) [1]" in talked.out
    assert "reordered: 50 prompt tokens: 40 reused, 10 computed" in talked.out
    assert talked.code == 0


def test_what_was_said_goes_in_front_of_the_next_question_as_it_does_over_http() -> None:
    answerer = Answerer("Orla Venn", "1874", "?")
    Talked(answerer, "Who built it?\n", "\n", "When?\n", "/clear", "And now?")
    assert [one.questions for one in answerer.asked] == [("Who built it?",), ("When?",), ("And now?",)]
    said = (EarlierTurn(Speaker.USER, "Who built it?"), EarlierTurn(Speaker.ASSISTANT, "Orla Venn"))
    assert [one.turns for one in answerer.asked] == [(), said, ()]


def test_a_mode_holds_from_then_on() -> None:
    answerer = Answerer(*"abcd")
    talked = Talked(answerer, "1", "/mode cacheclip 0.3", "2", "3", "/mode auto", "4", "/mode")
    assert [(one.reuse.mode, one.reuse.recompute) for one in answerer.asked] == [
        (None, Recompute()),
        (ReuseMode.CACHECLIP, Recompute(0.3)),
        (ReuseMode.CACHECLIP, Recompute(0.3)),
        (Auto.AUTO, Recompute()),
    ]
    assert "mode: cacheclip, 0.3 of the tokens computed anew" in talked.out
    assert talked.out.rstrip().endswith("mode: auto")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/mode fastest", "/mode: 'fastest' is not one of full, "),
        ("/mode tokens", "/mode: 'tokens' is not one of"),
        ("/mode epic lots", "/mode: the ratio 'lots' is no number from 0 to 1"),
        ("/mode epic 1.5", "recompute.ratio: 1.5 is out of range"),
        ("/modes", "/modes: there is no such command; try /help"),
        ("/mode a b c", "there is no such command"),
        ("/", "there is no such command"),
    ],
)
def test_a_mistaken_command_is_told_and_the_conversation_goes_on(line: str, says: str) -> None:
    answerer = Answerer("yes")
    talked = Talked(answerer, line, "Still there?")
    assert says in talked.err
    assert talked.code == 2
    assert len(answerer.asked) == 1
    assert answerer.asked[0].reuse.mode is None


def test_the_passages_of_the_last_answer_are_shown_when_asked_for() -> None:
    talked = Talked(Answerer("Orla"), "/sources", "Who?", "/sources")
    assert talked.out.index("there is no answer yet") < talked.out.index("[1] bridge.txt (History)")
    assert "Orla Venn built it" in talked.out


def test_help_names_every_command_and_quit_ends() -> None:
    answerer = Answerer()
    talked = Talked(answerer, "/help", "/quit", "Who?")
    for command in ("/mode", "/sources", "/clear", "/help", "/quit"):
        assert command in talked.out
    assert (talked.code, answerer.asked) == (0, [])


def test_an_answer_that_fails_is_told_and_leaves_no_turn() -> None:
    answerer = Answerer(Unavailable("the generator is away; retry"), "Orla")
    talked = Talked(answerer, "Who?", "Who?")
    assert "the generator is away" in talked.err
    assert [one.turns for one in answerer.asked] == [(), ()]
    assert len(talked.dialogue.turns) == 2
    assert talked.code == 4


def test_who_has_said_too_much_is_told_how_to_go_on() -> None:
    too_long = ContextTooLong("the prompt has 9000 positions, the model 8192")
    talked = Talked(Answerer(too_long, "Orla", too_long), "What?", "Who?", "When?")
    assert talked.err.count("8192; /clear forgets what was said") == 1


@pytest.fixture
def at_a_terminal() -> Iterator[None]:
    """Ctrl-C is heard, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("at_a_terminal")
def test_ctrl_c_ends_the_answer_and_not_the_conversation() -> None:
    answerer = Answerer("", "Orla", interrupts=0)
    talked = Talked(answerer, "Who?", "Who, again?")
    assert "never" in talked.out
    assert "the answer was ended" in talked.err
    assert answerer.num_closed == 2
    assert answerer.asked[1].turns == ()
    assert "Orla" in talked.out


def test_for_programs_everything_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    answerer = Answerer("Orla", Unavailable("away; retry"), "1874")
    talked = Talked(
        answerer, "/mode epic 0.2", "Who?", "/sources", "When?", "When?", "/clear", "/help", as_json=True
    )
    shown = capsys.readouterr()
    mode, first, sources, second, cleared, help_ = map(json.loads, shown.out.splitlines())
    assert mode == {"mode": "epic", "ratio": 0.2}
    assert first["answers"][0]["text"] == "Orla"
    assert first["answers"][0]["citations"][0]["document_id"] == "bridge.txt"
    assert sources["sources"][0]["text"] == "Orla Venn built it"
    assert second["answers"][0]["text"] == "1874"
    assert cleared == {"cleared": 2}
    assert len(help_["help"]) == 5
    assert json.loads(shown.err) == {
        "error": {"code": "UNAVAILABLE", "message": "away; retry", "retryable": True}
    }
    assert talked.out == talked.err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_at_a_terminal_ctrl_c_begins_the_line_anew_and_ctrl_d_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    typed: Iterator[str | BaseException] = iter(["Who?", KeyboardInterrupt(), "When?", EOFError()])

    def said(prompt: str) -> str:
        assert prompt == "> "
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", said)
    assert list(lines_of(Terminal())) == ["Who?", "When?"]


def test_piped_lines_are_questions() -> None:
    assert list(lines_of(io.StringIO("Who?\nWhen?\n"))) == ["Who?\n", "When?\n"]
