"""`kvquilt explore` without services: lines, and a conversation with a forest that answers as the generator
does."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from cluster.cli.conversation import Conversation, Lines, lines_of
from shared.errors import InvalidRequest, NotFound
from shared.generation.asked import SamplingParams
from shared.generation.forest import Append, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.told import (
    AppliedEvent,
    DoneEvent,
    ExploringEvent,
    FinishReason,
    GrownEvent,
    RefusedEvent,
    RestedEvent,
    Timings,
    Usage,
)

SAMPLING = SamplingParams(temperature=0.5, seed=3)
DONE = DoneEvent(Usage(50, 40, 10, 2), Timings())


class TestLines:
    def test_every_command_and_the_numbers_of_names(self) -> None:
        lines = Lines(SAMPLING)
        told = [
            lines.command(line)
            for line in (
                "start a Who  is it?\n",
                " start   b  Why?",
                "grow a",
                "grow b 7",
                "fork c a",
                "fork d c 3",
                "rewind a 2",
                "append a  Well, ",
                "prune b",
                "merge e a c d",
                "place f a c",
            )
        ]
        assert told == [
            Start(0, "Who  is it?"),
            Start(1, "Why?"),
            Grow(0, SAMPLING),
            Grow(1, SamplingParams(7, temperature=0.5, seed=3)),
            Fork(2, 0),
            Fork(3, 2, 3),
            Rewind(0, 2),
            Append(0, " Well, "),
            Prune(1),
            Merge(4, (0, 2, 3)),
            Merge(5, (0, 2), placed=True),
        ]
        assert [lines.name(i) for i in range(6)] == list("abcdef")

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ("hello", "it is no command; there are start NEW QUESTION"),
            ("start a", "it is no command"),
            ("merge b a", "it is no command"),
            ("grow a b c", "it is no command"),
            ("fork b nobody", "there is no branch nobody"),
            ("rewind a -1", "'-1' is not a number of tokens"),
        ],
    )
    def test_what_is_no_command_says_why(self, line: str, why: str) -> None:
        lines = Lines(SAMPLING)
        lines.command("start a Who?")
        with pytest.raises(InvalidRequest) as refusal:
            lines.command(line)
        assert refusal.value.detail.startswith(why)


async def forest(commands: AsyncIterator[Edit], said: list[str]) -> AsyncGenerator[ExploringEvent, None]:
    """Grows two tokens, rests only when it is asked for the next command, and knows no branch 9."""
    growing: list[int] = []
    number = 0
    async for command in commands:
        said.append(f"{type(command).__name__} {command.branch}")
        if isinstance(command, Fork) and command.source == 2:
            yield RefusedEvent(number, NotFound("fork.source: there is no branch 2"))
        else:
            yield AppliedEvent(number, 12, approximate=isinstance(command, Merge) and command.placed)
        number += 1
        if isinstance(command, Grow):
            growing.append(command.branch)
            for text in (" Or", "la"):
                yield GrownEvent(command.branch, 5, text, -0.1)
        if isinstance(command, Rewind):
            growing.remove(command.branch)
    for branch in growing:
        yield RestedEvent(branch, FinishReason.STOP, ".", 14)
    yield DONE


async def said_lines(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def talk(*lines: str) -> tuple[str, list[str], int]:
    out, said = io.StringIO(), list[str]()
    conversation = Conversation(Console(file=out, width=200), Lines(SAMPLING))
    await conversation.show(forest(conversation.commands(said_lines(*lines)), said))
    return out.getvalue(), said, conversation.num_refused


async def test_branches_are_shown_by_name_with_what_they_grew_and_the_cost() -> None:
    shown, _, refused = await talk("start a Who?", "fork b a", "grow a", "grow b", "prune b")
    assert refused == 0
    assert "a: Orla. [stop, 14 tokens]" in shown
    assert "b: Orla [stopped]\nb: pruned" in shown
    assert shown.rstrip().endswith("50 prompt tokens: 40 reused, 10 computed; 2 generated")


async def test_a_rewound_branch_shows_what_it_had_grown() -> None:
    shown, _, _ = await talk("start a Who?", "grow a", "rewind a 1")
    assert "a: Orla [stopped]\na: 12 tokens" in shown


async def test_an_approximation_is_called_one() -> None:
    shown, _, _ = await talk("start a Who?", "start b Why?", "merge c a b", "place d a b")
    assert "c: 12 tokens\nd: 12 tokens, an approximation" in shown


async def test_refusals_are_shown_with_their_line_and_the_forest_goes_on() -> None:
    shown, said, refused = await talk(
        "start a Who?", "nonsense", "", "start b Why?", "start c Why?", "fork d c", "prune a"
    )
    assert "refused: nonsense: it is no command" in shown
    assert "refused: fork d c: fork.source: there is no branch 2" in shown
    assert (refused, said[-1]) == (2, "Prune 0")


@pytest.mark.parametrize("line", ["append a  x", "grow a", "merge c a b"])
async def test_what_needs_a_branch_at_rest_waits_for_it(line: str) -> None:
    """A script says it in one breath; the forest would refuse it."""

    async def slow(
        commands: AsyncIterator[Edit],
    ) -> AsyncGenerator[ExploringEvent, None]:
        for number in range(3):
            await anext(commands)
            yield AppliedEvent(number, 3)
        following = asyncio.ensure_future(anext(commands))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not following.done(), "it was said too early"
        yield RestedEvent(0, FinishReason.LENGTH, "", 9)
        await following
        yield AppliedEvent(3, 10)
        yield DONE

    out = io.StringIO()
    conversation = Conversation(Console(file=out, width=200), Lines(SAMPLING))
    await conversation.show(
        slow(conversation.commands(said_lines("start a Who?", "start b Why?", "grow a", line)))
    )
    assert out.getvalue().count(": 10 tokens") == 1


async def test_lines_come_from_a_file_one_by_one() -> None:
    assert [line async for line in lines_of(io.StringIO("one\n\ntwo"))] == ["one\n", "\n", "two"]


async def test_for_programs_everything_that_happens_is_a_value() -> None:
    said, told = list[str](), list[Any]()
    out = io.StringIO()
    conversation = Conversation(Console(file=out), Lines(SAMPLING), told.append)
    lines = said_lines("start a Who?", "nonsense", "fork b a", "grow a", "grow b", "prune b")
    await conversation.show(forest(conversation.commands(lines), said))
    assert out.getvalue() == ""
    by_event = {event: [one for one in told if one["event"] == event] for event in ("refused", "rested")}
    assert by_event["refused"][0]["line"] == "nonsense"
    assert {"branch": "a", "event": "rested", "text": "Orla.", "why": "stop, 14 tokens"} in by_event["rested"]
    assert told[0] == {"branch": "a", "event": "applied", "num_tokens": 12, "approximate": False}
    assert told[-1]["event"] == "done"
    assert told[-1]["usage"]["prompt_tokens"] == 50
