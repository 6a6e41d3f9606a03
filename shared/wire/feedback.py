"""Translates ratings of answers."""

from __future__ import annotations

from protos.kvquilt.v1 import rag_pb2
from shared.feedback import Feedback, RatedAnswer, Rating
from shared.wire.enums import EnumWire
from shared.wire.message import MessageWire

RATINGS = EnumWire(rag_pb2.Rating, (Rating.GOOD, Rating.BAD), Rating.NONE)
FEEDBACK = MessageWire(Feedback, rag_pb2.FeedbackRequest, rating=RATINGS)
RATED = MessageWire(RatedAnswer, rag_pb2.RatedAnswer, rating=RATINGS)
