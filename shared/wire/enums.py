"""Enums as messages carry them: by the names of a twin among the protos, or by their own values."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Generic, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from protos.kvquilt.v1 import common_pb2, selection_pb2
from shared.errors import InvalidRequest
from shared.generation.asked import ChoiceRule, EarlyStopping, MarginsAfter
from shared.generation.modes import ReuseMode
from shared.generation.orders import ASKED_MODES, AskedMode
from shared.generation.selection import Grouping, Reading
from shared.generation.told import FinishReason

MemberT = TypeVar("MemberT", bound=enum.Enum)
NamedT = TypeVar("NamedT", bound=enum.StrEnum)


class EnumWire(Generic[MemberT]):
    """Equal names, behind the twin's prefix. None is ``UNSPECIFIED``, number 0."""

    def __init__(self, twin: EnumTypeWrapper, members: Iterable[MemberT]) -> None:
        self._prefix = twin.Name(0).removesuffix("UNSPECIFIED")
        self._members = {twin.Value(self._prefix + member.name): member for member in members}

    def to_pb(self, member: MemberT | None) -> str:
        """The twin's name, which messages take for its number."""
        return self._prefix + ("UNSPECIFIED" if member is None else member.name)

    def of(self, number: int, field: str) -> MemberT | None:
        """
        Raises:
            InvalidRequest: this version does not know it; names the field.
        """
        if number and number not in self._members:
            known = ", ".join(member.name for member in self._members.values())
            raise InvalidRequest(f"{field}: {number} is not known; use one of {known}")
        return self._members.get(number)

    def known(self, number: int) -> MemberT | None:
        """None of one that this version does not know, too."""
        return self._members.get(number)


class NameWire(Generic[NamedT]):
    """None is the empty string; a member is its value."""

    def __init__(self, members: Iterable[NamedT]) -> None:
        self._members = {member.value: member for member in members}

    def to_pb(self, member: NamedT | None) -> str:
        return "" if member is None else member.value

    def of(self, name: str, field: str) -> NamedT | None:
        """
        Raises:
            InvalidRequest: this version does not know it; names the field.
        """
        if name and name not in self._members:
            raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(self._members)}")
        return self._members.get(name)

    def known(self, name: str) -> NamedT | None:
        """None of one that this version does not know, too."""
        return self._members.get(name)


MODES: NameWire[AskedMode] = NameWire(ASKED_MODES)
USED_MODES = NameWire(ReuseMode)
FINISH_REASONS = EnumWire(common_pb2.FinishReason, (FinishReason.STOP, FinishReason.LENGTH))
STOPPINGS = EnumWire(common_pb2.EarlyStopping, EarlyStopping)
RULES = EnumWire(common_pb2.ChoiceRule, ChoiceRule)
MARGINS_AFTER = EnumWire(common_pb2.MarginsAfter, MarginsAfter)
GROUPINGS = EnumWire(selection_pb2.Grouping, Grouping)
READINGS = EnumWire(selection_pb2.Reading, Reading)
