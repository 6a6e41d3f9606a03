from protos.kvquilt.v1 import selection_pb2 as _selection_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Recompute(_message.Message):
    __slots__ = ("ratio", "tokens", "seed", "grouping", "reading")
    RATIO_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GROUPING_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    ratio: float
    tokens: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    grouping: _selection_pb2.Grouping
    reading: _selection_pb2.Reading
    def __init__(self, ratio: _Optional[float] = ..., tokens: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ..., grouping: _Optional[_Union[_selection_pb2.Grouping, str]] = ..., reading: _Optional[_Union[_selection_pb2.Reading, str]] = ...) -> None: ...

class Ape(_message.Message):
    __slots__ = ("temperature", "scale")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    scale: float
    def __init__(self, temperature: _Optional[float] = ..., scale: _Optional[float] = ...) -> None: ...

class Selected(_message.Message):
    __slots__ = ("question", "tokens", "layers", "reading", "num_picked", "num_grouped", "timings", "scores", "chunks")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    NUM_PICKED_FIELD_NUMBER: _ClassVar[int]
    NUM_GROUPED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    question: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    reading: _selection_pb2.Reading
    num_picked: int
    num_grouped: int
    timings: _selection_pb2.SelectionTimings
    scores: _containers.RepeatedScalarFieldContainer[float]
    chunks: _containers.RepeatedCompositeFieldContainer[ChunkSpans]
    def __init__(self, question: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., layers: _Optional[_Iterable[int]] = ..., reading: _Optional[_Union[_selection_pb2.Reading, str]] = ..., num_picked: _Optional[int] = ..., num_grouped: _Optional[int] = ..., timings: _Optional[_Union[_selection_pb2.SelectionTimings, _Mapping]] = ..., scores: _Optional[_Iterable[float]] = ..., chunks: _Optional[_Iterable[_Union[ChunkSpans, _Mapping]]] = ...) -> None: ...

class ChunkSpans(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[TextSpan]
    def __init__(self, spans: _Optional[_Iterable[_Union[TextSpan, _Mapping]]] = ...) -> None: ...

class TextSpan(_message.Message):
    __slots__ = ("start", "end", "score")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    score: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...
