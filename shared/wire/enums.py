"""Translates enums: by the names of a twin among the protos, or by their own values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Generic, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from protos.kvquilt.v1 import common_pb2, ingest_pb2, kv_store_pb2, retrieval_pb2, selection_pb2
from shared.answer import Refusal
from shared.documents import Stage
from shared.errors import InvalidRequest
from shared.generation.asked import ChoiceRule, EarlyStopping, MarginsAfter
from shared.generation.modes import ReuseMode
from shared.generation.orders import ASKED_MODES, AskedMode
from shared.generation.selection import Grouping, Reading
from shared.generation.told import FinishReason
from shared.kv_items import Expected
from shared.kv_types import KvContext
from shared.search import FilterOp, SearchMode

MemberT = TypeVar("MemberT", bound=enum.Enum)
UnsetT = TypeVar("UnsetT", bound=enum.Enum | None)
NamedT = TypeVar("NamedT", bound=enum.StrEnum)


class EnumWire(Generic[MemberT, UnsetT]):
    """Equal names, behind the twin's prefix. ``unset`` is ``UNSPECIFIED``, number 0, if it has no twin."""

    def __init__(self, twin: EnumTypeWrapper, members: Iterable[MemberT], unset: UnsetT) -> None:
        self._prefix = twin.Name(0).removesuffix("UNSPECIFIED")
        self._members = {twin.Value(self._prefix + member.name): member for member in members}
        self._unset = unset

    def to_pb(self, member: MemberT | UnsetT) -> str:
        """The twin's name, which messages take for its number."""
        known = member is not None and member in self._members.values()
        return self._prefix + (member.name if member is not None and known else "UNSPECIFIED")

    def of(self, number: int, field: str = "") -> MemberT | UnsetT:
        """``field`` empty: what this version does not know counts as unset, as proto3 asks for.

        Raises:
            InvalidRequest: this version does not know it; names the field.
        """
        if field and number and number not in self._members:
            known = ", ".join(member.name for member in self._members.values())
            raise InvalidRequest(f"{field}: {number} is not known; use one of {known}")
        return self._members.get(number, self._unset)


class NameWire(Generic[NamedT]):
    """None is the empty string; a member is its value."""

    def __init__(self, members: Iterable[NamedT]) -> None:
        self._members = {member.value: member for member in members}

    def to_pb(self, member: NamedT | None) -> str:
        return "" if member is None else member.value

    def of(self, name: str, field: str = "") -> NamedT | None:
        """``field`` empty: None of what this version does not know.

        Raises:
            InvalidRequest: this version does not know it; names the field.
        """
        if field and name and name not in self._members:
            raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(self._members)}")
        return self._members.get(name)


MODES: NameWire[AskedMode] = NameWire(ASKED_MODES)
USED_MODES = NameWire(ReuseMode)
FINISH_REASONS = EnumWire(
    common_pb2.FinishReason,
    (reason for reason in FinishReason if reason is not FinishReason.UNKNOWN),
    FinishReason.UNKNOWN,
)
REFUSALS = NameWire(Refusal)
KV_CONTEXTS = NameWire(KvContext)
STOPPINGS = EnumWire(common_pb2.EarlyStopping, EarlyStopping, None)
RULES = EnumWire(common_pb2.ChoiceRule, ChoiceRule, None)
MARGINS_AFTER = EnumWire(common_pb2.MarginsAfter, MarginsAfter, None)
GROUPINGS = EnumWire(selection_pb2.Grouping, Grouping, None)
READINGS = EnumWire(selection_pb2.Reading, Reading, None)
SEARCH_MODES = EnumWire(
    retrieval_pb2.SearchMode, (mode for mode in SearchMode if mode is not SearchMode.AUTO), SearchMode.AUTO
)
FILTER_OPS = EnumWire(retrieval_pb2.Filter.Op, FilterOp, FilterOp.EQ)
STAGES = EnumWire(ingest_pb2.UpsertProgress.Stage, Stage, Stage.PREFILLED)
EXPECTATIONS = EnumWire(
    kv_store_pb2.ItemExpectation,
    (expected for expected in Expected if expected is not Expected.EITHER),
    Expected.EITHER,
)
