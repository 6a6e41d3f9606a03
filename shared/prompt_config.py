"""Settings of the prompt: which template, what it says to the model, and what is held fixed in it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

DEFAULT_DATE = "2024-07-26"


@dataclass(frozen=True, slots=True)
class PromptConfig:
    """The prompt of the model that answers (docs/prompts.md). Changing it changes the KV of every chunk: run
    `kvquilt ingest --re-encode` afterwards.

    template: `auto` is the model's own `kvquilt.json`, else its tokenizer's chat template, else `default`;
    `chat` insists on the chat template; `default` is plain text; `turborag` marks documents as TurboRAG does.
    system: the system text; left out: what the chat template says by itself.
    instruction: the text in front of the documents; left out: the template's own.
    date: the "today" of chat templates that print one, always the same, since KV depends on it.
    thinking: of models that can think before they answer.
    packets: a folder of `kvquilt train packets`, or the name of one that the model brings, whose vectors
    stand in front of and behind every chunk (docs/packets.md). With `ingestion.kv_context: none` and
    without a selector.
    """

    template: Literal["auto", "chat", "default", "turborag"] = "auto"
    system: str | None = None
    instruction: str | None = None
    date: str = DEFAULT_DATE
    thinking: bool = False
    packets: str = ""

    def __post_init__(self) -> None:
        try:
            _ = self.today
        except ValueError:
            raise ValueError(f"date: must be a day such as {DEFAULT_DATE}, got {self.date!r}") from None

    @property
    def today(self) -> datetime.datetime:
        return datetime.datetime.combine(datetime.datetime.fromisoformat(self.date).date(), datetime.time())
