"""Puts what was said earlier in a conversation in front of a question: as text, since documents' KV was
computed behind the configured prefix. What is then searched by: ``services.gateway.follow_ups``."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Speaker(enum.StrEnum):
    USER = "User"
    ASSISTANT = "Assistant"


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    speaker: Speaker
    text: str


def preface_of(turns: Sequence[EarlierTurn], told: Sequence[str] = ()) -> str:
    """``told``: text in front of all turns, as of system messages. Empty: nothing was said."""
    spoken = [f"{turn.speaker}: {turn.text}" for turn in turns]
    return "\n".join([*told, *(["Earlier in this conversation:", *spoken] if spoken else ())])
