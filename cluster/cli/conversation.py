"""Tells a live forest what `kvquilt explore` reads, a line at a time, and shows what becomes of it."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import asdict, replace
from typing import TextIO

from rich.console import Console
from rich.text import Text

from cluster.cli.console import usage_line
from shared.errors import InvalidRequest
from shared.generation.asked import SamplingParams
from shared.generation.forest import Append, Edit, Fork, Grow, Merge, Prune, Rewind, Start
from shared.generation.told import (
    AppliedEvent,
    DoneEvent,
    ExploringEvent,
    GrownEvent,
    RefusedEvent,
    RestedEvent,
    SelectedEvent,
)

COMMANDS = (
    "start NEW QUESTION, grow BRANCH [TOKENS], fork NEW BRANCH [LENGTH], rewind BRANCH TOKENS, append "
    "BRANCH TEXT, prune BRANCH, "
    "merge NEW BRANCH BRANCH…, place NEW BRANCH BRANCH…"
)


class Lines:
    """Branches have names here and numbers in the forest; a name stays the same number."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._sampling = sampling
        self._names: list[str] = []

    def name(self, branch: int) -> str:
        return self._names[branch]

    def command(self, line: str) -> Edit:
        """
        Raises:
            InvalidRequest: it is none.
        """
        match line.split():
            case ["start", new, _, *_]:
                return Start(self._new(new), _text(line).strip())
            case ["append", branch, _, *_]:
                return Append(self._known(branch), _text(line))
            case ["grow", branch]:
                return Grow(self._known(branch), self._sampling)
            case ["grow", branch, count]:
                return Grow(self._known(branch), replace(self._sampling, max_tokens=_number(count)))
            case ["fork", new, branch]:
                return Fork(source=self._known(branch), branch=self._new(new))
            case ["fork", new, branch, length]:
                return Fork(source=self._known(branch), length=_number(length), branch=self._new(new))
            case ["rewind", branch, count]:
                return Rewind(self._known(branch), _number(count))
            case ["prune", branch]:
                return Prune(self._known(branch))
            case ["merge" | "place" as verb, new, first, second, *others]:
                sources = tuple(map(self._known, (first, second, *others)))
                return Merge(self._new(new), sources, placed=verb == "place")
            case _:
                raise InvalidRequest(f"it is no command; there are {COMMANDS}")

    def _new(self, name: str) -> int:
        if name not in self._names:
            self._names.append(name)
        return self._names.index(name)

    def _known(self, name: str) -> int:
        if name not in self._names:
            raise InvalidRequest(f"there is no branch {name}")
        return self._names.index(name)


class Conversation:
    """A line is said when the one before is answered and the branches that must rest for it do, so that a
    script may say in one breath what a person says step by step. ``num_refused``: lines that were not
    understood or not obeyed. ``tell_line``: takes what happens, instead of the console."""

    def __init__(
        self, console: Console, lines: Lines, tell_line: Callable[[object], None] | None = None
    ) -> None:
        self._tell_line = tell_line
        self.num_refused = 0
        self._console = console
        self._lines = lines
        self._news = asyncio.Condition()
        self._said: list[tuple[str, Edit]] = []
        self._num_answered = 0
        self._growing: set[int] = set()
        self._texts: defaultdict[int, str] = defaultdict(str)

    async def commands(self, lines: AsyncIterator[str]) -> AsyncIterator[Edit]:
        async for line in lines:
            if not line.strip():
                continue
            try:
                command = self._lines.command(line)
            except InvalidRequest as error:
                self._refuse(line, error.detail)
                continue
            await self._ready_for(command)
            self._said.append((line, command))
            if isinstance(command, Grow):
                self._growing.add(command.branch)
            yield command

    async def show(self, events: AsyncGenerator[ExploringEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, DoneEvent):
                    self._say({"event": "done", "usage": asdict(event.usage)}, usage_line(event.usage), "dim")
                    return
                async with self._news:
                    self._show(event)
                    self._news.notify_all()

    async def _ready_for(self, command: Edit) -> None:
        match command:
            case Append(branch) | Grow(branch):
                to_rest = {branch}
            case Merge(_, sources):
                to_rest = set(sources)
            case _:
                to_rest = set[int]()
        async with self._news:
            await self._news.wait_for(
                lambda: self._num_answered == len(self._said) and not to_rest & self._growing
            )

    def _show(self, event: ExploringEvent) -> None:
        match event:
            case AppliedEvent():
                self._num_answered += 1
                _, command = self._said[event.command]
                if isinstance(command, Rewind | Prune):
                    self._stop(command.branch, "stopped")
                what = "pruned" if isinstance(command, Prune) else f"{event.num_tokens} tokens"
                told = {"event": "applied", "num_tokens": event.num_tokens, "approximate": event.approximate}
                about = f"{what}{', an approximation' if event.approximate else ''}"
                self._tell(command.branch, told, about, "dim")
            case RefusedEvent():
                self._num_answered += 1
                line, command = self._said[event.command]
                if isinstance(command, Grow):
                    self._growing.discard(command.branch)
                self._refuse(line, event.error.detail)
            case SelectedEvent():
                num = len(event.tokens)
                told = {"event": "selected", "num_tokens": num}
                self._say(told, f"{num} tokens of the context are computed anew", "dim")
            case GrownEvent():
                self._texts[event.branch] += event.text
            case RestedEvent():
                self._texts[event.branch] += event.text
                self._stop(event.branch, f"{event.finish_reason}, {event.num_tokens} tokens")

    def _stop(self, branch: int, why: str) -> None:
        """Shows what it has grown since it was told to."""
        if branch in self._growing:
            self._growing.remove(branch)
            text = self._texts.pop(branch, "").strip()
            self._tell(branch, {"event": "rested", "text": text, "why": why}, f"{text} [{why}]")

    def _tell(self, branch: int, value: dict[str, object], words: str, style: str = "") -> None:
        name = self._lines.name(branch)
        self._say({"branch": name} | value, f"{name}: {words}", style)

    def _say(self, value: dict[str, object], text: str, style: str) -> None:
        if self._tell_line is not None:
            self._tell_line(value)
        else:
            self._console.print(Text(text, style), soft_wrap=True)

    def _refuse(self, line: str, why: str) -> None:
        self.num_refused += 1
        told: dict[str, object] = {"event": "refused", "line": line.strip(), "message": why}
        self._say(told, f"refused: {line.strip()}: {why}", "red")


async def lines_of(file: TextIO) -> AsyncIterator[str]:
    """As they come. The thread that waits for the next one ends with the process: nothing can wake it."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in file:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        yield line


def _text(line: str) -> str:
    """Returns what follows two words and one blank: further blanks belong to it."""
    return line.rstrip("\n").lstrip().split(maxsplit=1)[1].split(" ", 1)[1]


def _number(word: str) -> int:
    if not word.isdecimal():
        raise InvalidRequest(f"{word!r} is not a number of tokens")
    return int(word)
