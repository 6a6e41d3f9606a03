"""Translates values and messages whose fields have equal names: written out are only those that differ."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from shared.errors import InternalError

ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)


class Wire(Protocol):
    """A value both ways."""

    def to_pb(self, value: Any) -> Any: ...
    def of(self, pb: Any) -> Any: ...


class Conversion(NamedTuple):
    """Two functions as a ``Wire``."""

    to_pb: Callable[[Any], Any]
    of: Callable[[Any], Any]


class TupleWire:
    """A tuple and the message whose fields are its elements, in this order."""

    def __init__(self, message_type: type[Message], *names: str) -> None:
        self._message_type, self._names = message_type, names

    def to_pb(self, values: tuple[Any, ...]) -> Message:
        return self._message_type(**dict(zip(self._names, values, strict=True)))

    def of(self, message: Message) -> tuple[Any, ...]:
        return tuple(getattr(message, name) for name in self._names)


_MILLISECONDS = Conversion(lambda seconds: seconds * 1000, lambda ms: ms / 1000)


class MessageWire(Generic[ValueT, MessageT]):
    """A dataclass and a message. Dataclasses within it are messages within that, tuples repeated fields,
    seconds (``x_s``) milliseconds (``x_ms``). What a message leaves out, or says in a member that is not
    known, is what the dataclass has by default; a field that only one of the two has does not travel.
    ``others``: fields that travel otherwise; of repeated ones each element."""

    def __init__(self, value_type: type[ValueT], message_type: type[MessageT], **others: Wire) -> None:
        self.value_type, self._message_type = value_type, message_type
        hints = typing.get_type_hints(value_type)
        there: Mapping[str, Any] = message_type.DESCRIPTOR.fields_by_name
        self._fields: list[_Field] = []
        for field in dataclasses.fields(value_type):  # type: ignore[arg-type]
            in_ms = f"{field.name.removesuffix('_s')}_ms"
            if field.name in there:
                wire = others.get(field.name) or _nested(hints[field.name], there[field.name])
                self._fields.append(_Field(field, there[field.name], wire))
            elif in_ms in there:
                self._fields.append(_Field(field, there[in_ms], _MILLISECONDS))

    def to_pb(self, value: ValueT) -> MessageT:
        return self._message_type(**self.fields_of(value))

    def of(self, message: MessageT) -> ValueT:
        return self.value_type(**self.values_of(message))

    def fields_of(self, value: ValueT) -> dict[str, Any]:
        """The message's fields, by name."""
        return {field.pb_name: field.to_pb(getattr(value, field.name)) for field in self._fields}

    def values_of(self, message: Message) -> dict[str, Any]:
        """The dataclass's fields, by name; of any message that has them."""
        given = {descriptor.name for descriptor, _ in message.ListFields()}
        read = (
            (field, field.of(getattr(message, field.pb_name)))
            for field in self._fields
            if field.required or field.pb_name in given
        )
        return {field.name: value for field, value in read if field.required or value is not None}


class OneOfWire(Generic[ValueT, MessageT]):
    """Values of several types, each in a field of its own of a message that holds one of them."""

    def __init__(self, message_type: type[MessageT], **wires: MessageWire[Any, Any]) -> None:
        self._message_type, self._wires = message_type, wires
        (self._oneof,) = message_type.DESCRIPTOR.oneofs_by_name
        self._names = {wire.value_type: name for name, wire in wires.items()}

    def to_pb(self, value: object) -> MessageT:
        name = self._names[type(value)]
        return self._message_type(**{name: self._wires[name].to_pb(value)})

    def of(self, message: MessageT) -> ValueT:
        """
        Raises:
            InternalError: it holds nothing that this version knows.
        """
        name = message.WhichOneof(self._oneof)
        if name not in self._wires:
            raise InternalError(f"{self._oneof}: {name or 'nothing'} is not known to this version")
        value: ValueT = self._wires[name].of(getattr(message, name))
        return value


class _Field:
    """``wire`` None: both have the same."""

    def __init__(self, field: dataclasses.Field[Any], descriptor: FieldDescriptor, wire: Wire | None) -> None:
        self.name, self.pb_name = field.name, descriptor.name
        self.required = field.default is field.default_factory is dataclasses.MISSING
        self._repeated, self._map, self._wire = descriptor.is_repeated, _is_map(descriptor), wire

    def to_pb(self, value: Any) -> Any:
        if value is None or self._wire is None:
            return value
        return [self._wire.to_pb(one) for one in value] if self._repeated else self._wire.to_pb(value)

    def of(self, pb: Any) -> Any:
        if self._map:
            return dict(pb)
        if self._wire is None:
            return tuple(pb) if self._repeated else pb
        return tuple(map(self._wire.of, pb)) if self._repeated else self._wire.of(pb)


def _nested(hint: Any, descriptor: FieldDescriptor) -> Wire | None:
    """Of a field that holds a dataclass, several of them, or perhaps one."""
    if descriptor.message_type is None or _is_map(descriptor):
        return None
    (value_type,) = (one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one))
    return MessageWire(typing.cast(type[Any], value_type), GetMessageClass(descriptor.message_type))


def _is_map(descriptor: FieldDescriptor) -> bool:
    return descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry
