"""Translates questions to the gateway and their answers."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from protos.kvquilt.v1 import rag_pb2
from shared.answer import (
    AnswerDone,
    AnswerEvent,
    AnswerText,
    AnswerUsage,
    FollowUp,
    Inquiry,
    RetrievalOptions,
    Retrieved,
)
from shared.earlier_turns import EarlierTurn, Speaker
from shared.wire.asked import DECODING, reuse_of, reuse_to_pb
from shared.wire.enums import FINISH_REASONS, REFUSALS, SEARCH_MODES, NameWire
from shared.wire.message import Conversion, MessageWire, OneOfWire
from shared.wire.retrieval import FILTER, HIT
from shared.wire.told import EVENTS, USAGE

_FOLLOW_UPS = {member.value: member for member in FollowUp}
_FOLLOW_UP = Conversion(lambda member: member.value, lambda name: _FOLLOW_UPS.get(name, FollowUp.NONE))
_OPTIONS = MessageWire(RetrievalOptions, rag_pb2.RetrievalOptions, mode=SEARCH_MODES, filters=FILTER)
ANSWERED: OneOfWire[AnswerEvent, rag_pb2.AnswerEvent] = OneOfWire(
    rag_pb2.AnswerEvent,
    **EVENTS,
    retrieved=MessageWire(Retrieved, rag_pb2.Retrieved, hits=HIT, mode=SEARCH_MODES, follow_up=_FOLLOW_UP),
    answer=MessageWire(AnswerText, rag_pb2.AnswerText, finish_reason=FINISH_REASONS),
    usage=MessageWire(AnswerUsage, rag_pb2.AnswerUsage, usage=USAGE),
    done=MessageWire(AnswerDone, rag_pb2.AnswerDone),
)


_SPEAKERS = NameWire(Speaker)
_SPEAKER = Conversion(_SPEAKERS.to_pb, lambda name: _SPEAKERS.of(name, "turns.speaker") or Speaker.USER)
_TURN = MessageWire(EarlierTurn, rag_pb2.EarlierTurn, speaker=_SPEAKER)


class _Inquiry(MessageWire[Inquiry, rag_pb2.AnswerRequest]):
    """``reuse`` is four fields; an unknown ``refusal`` is refused."""

    def fields_of(self, value: Inquiry) -> dict[str, Any]:
        return super().fields_of(value) | reuse_to_pb(value.reuse)

    def values_of(self, message: Message) -> dict[str, Any]:
        assert isinstance(message, rag_pb2.AnswerRequest)
        return super().values_of(message) | {
            "reuse": reuse_of(message),
            "refusal": REFUSALS.of(message.refusal, "refusal"),
        }


INQUIRY = _Inquiry(
    Inquiry,
    rag_pb2.AnswerRequest,
    retrieval=_OPTIONS,
    decoding=DECODING,
    refusal=REFUSALS,
    turns=_TURN,
)
