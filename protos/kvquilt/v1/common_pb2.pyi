from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EarlyStopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EARLY_STOPPING_UNSPECIFIED: _ClassVar[EarlyStopping]
    EARLY_STOPPING_FIRST: _ClassVar[EarlyStopping]
    EARLY_STOPPING_ESTIMATE: _ClassVar[EarlyStopping]
    EARLY_STOPPING_NEVER: _ClassVar[EarlyStopping]

class ChoiceRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHOICE_RULE_UNSPECIFIED: _ClassVar[ChoiceRule]
    CHOICE_RULE_MEAN_LOGPROB: _ClassVar[ChoiceRule]
    CHOICE_RULE_MAJORITY: _ClassVar[ChoiceRule]

class MarginsAfter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MARGINS_AFTER_UNSPECIFIED: _ClassVar[MarginsAfter]
    MARGINS_AFTER_OWN: _ClassVar[MarginsAfter]
    MARGINS_AFTER_PREVIOUS: _ClassVar[MarginsAfter]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_REFUSED: _ClassVar[FinishReason]
EARLY_STOPPING_UNSPECIFIED: EarlyStopping
EARLY_STOPPING_FIRST: EarlyStopping
EARLY_STOPPING_ESTIMATE: EarlyStopping
EARLY_STOPPING_NEVER: EarlyStopping
CHOICE_RULE_UNSPECIFIED: ChoiceRule
CHOICE_RULE_MEAN_LOGPROB: ChoiceRule
CHOICE_RULE_MAJORITY: ChoiceRule
MARGINS_AFTER_UNSPECIFIED: MarginsAfter
MARGINS_AFTER_OWN: MarginsAfter
MARGINS_AFTER_PREVIOUS: MarginsAfter
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_REFUSED: FinishReason

class RequestMeta(_message.Message):
    __slots__ = ("request_id", "tenant", "deadline_ms", "principal", "traceparent", "priority", "stream_interval_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STREAM_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tenant: str
    deadline_ms: int
    principal: str
    traceparent: str
    priority: int
    stream_interval_ms: int
    def __init__(self, request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., principal: _Optional[str] = ..., traceparent: _Optional[str] = ..., priority: _Optional[int] = ..., stream_interval_ms: _Optional[int] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: RequestMeta
    def __init__(self, meta: _Optional[_Union[RequestMeta, _Mapping]] = ...) -> None: ...

class HealthResponse(_message.Message):
    __slots__ = ("service", "ready", "detail", "facts")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    service: str
    ready: bool
    detail: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, service: _Optional[str] = ..., ready: _Optional[bool] = ..., detail: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SectionReaders(_message.Message):
    __slots__ = ("heading", "readers")
    HEADING_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    heading: str
    readers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, heading: _Optional[str] = ..., readers: _Optional[_Iterable[str]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_k", "top_p", "seed", "n", "stop", "ignore_eos", "top_logprobs", "response_format")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    n: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    ignore_eos: bool
    top_logprobs: int
    response_format: ResponseFormat
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., n: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., ignore_eos: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., response_format: _Optional[_Union[ResponseFormat, _Mapping]] = ...) -> None: ...

class ResponseFormat(_message.Message):
    __slots__ = ("json_schema",)
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    def __init__(self, json_schema: _Optional[str] = ...) -> None: ...

class Beams(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: EarlyStopping
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[_Union[EarlyStopping, str]] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("rule", "marker")
    RULE_FIELD_NUMBER: _ClassVar[int]
    MARKER_FIELD_NUMBER: _ClassVar[int]
    rule: ChoiceRule
    marker: str
    def __init__(self, rule: _Optional[_Union[ChoiceRule, str]] = ..., marker: _Optional[str] = ...) -> None: ...

class Decoding(_message.Message):
    __slots__ = ("beams", "choose", "margins")
    BEAMS_FIELD_NUMBER: _ClassVar[int]
    CHOOSE_FIELD_NUMBER: _ClassVar[int]
    MARGINS_FIELD_NUMBER: _ClassVar[int]
    beams: Beams
    choose: Choice
    margins: Margins
    def __init__(self, beams: _Optional[_Union[Beams, _Mapping]] = ..., choose: _Optional[_Union[Choice, _Mapping]] = ..., margins: _Optional[_Union[Margins, _Mapping]] = ...) -> None: ...

class Margins(_message.Message):
    __slots__ = ("instruction", "relevance", "yes", "no", "max_tokens", "after")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_FIELD_NUMBER: _ClassVar[int]
    YES_FIELD_NUMBER: _ClassVar[int]
    NO_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    instruction: str
    relevance: str
    yes: str
    no: str
    max_tokens: int
    after: MarginsAfter
    def __init__(self, instruction: _Optional[str] = ..., relevance: _Optional[str] = ..., yes: _Optional[str] = ..., no: _Optional[str] = ..., max_tokens: _Optional[int] = ..., after: _Optional[_Union[MarginsAfter, str]] = ...) -> None: ...

class MarginToken(_message.Message):
    __slots__ = ("chunk", "token_id", "text")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    token_id: int
    text: str
    def __init__(self, chunk: _Optional[int] = ..., token_id: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class Margin(_message.Message):
    __slots__ = ("chunk", "text", "kept", "yes_logprob", "no_logprob")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    YES_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    NO_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    text: str
    kept: bool
    yes_logprob: float
    no_logprob: float
    def __init__(self, chunk: _Optional[int] = ..., text: _Optional[str] = ..., kept: _Optional[bool] = ..., yes_logprob: _Optional[float] = ..., no_logprob: _Optional[float] = ...) -> None: ...

class Chosen(_message.Message):
    __slots__ = ("question", "sample", "answer", "votes")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    question: int
    sample: int
    answer: str
    votes: int
    def __init__(self, question: _Optional[int] = ..., sample: _Optional[int] = ..., answer: _Optional[str] = ..., votes: _Optional[int] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "reused_tokens", "recomputed_tokens", "generated_tokens", "loaded_tokens", "selected_tokens", "picked_tokens", "grouped_tokens", "reuse", "note", "isolated_tokens", "adapter", "verdict", "drafted_tokens", "accepted_tokens", "written_tokens", "route", "chunk_origins", "conversation_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOADED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PICKED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REUSE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ORIGINS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    generated_tokens: int
    loaded_tokens: int
    selected_tokens: int
    picked_tokens: int
    grouped_tokens: int
    reuse: str
    note: str
    isolated_tokens: int
    adapter: str
    verdict: ObeyedVerdict
    drafted_tokens: int
    accepted_tokens: int
    written_tokens: int
    route: str
    chunk_origins: _containers.RepeatedScalarFieldContainer[str]
    conversation_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., reused_tokens: _Optional[int] = ..., recomputed_tokens: _Optional[int] = ..., generated_tokens: _Optional[int] = ..., loaded_tokens: _Optional[int] = ..., selected_tokens: _Optional[int] = ..., picked_tokens: _Optional[int] = ..., grouped_tokens: _Optional[int] = ..., reuse: _Optional[str] = ..., note: _Optional[str] = ..., isolated_tokens: _Optional[int] = ..., adapter: _Optional[str] = ..., verdict: _Optional[_Union[ObeyedVerdict, _Mapping]] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., written_tokens: _Optional[int] = ..., route: _Optional[str] = ..., chunk_origins: _Optional[_Iterable[str]] = ..., conversation_tokens: _Optional[int] = ...) -> None: ...

class ObeyedVerdict(_message.Message):
    __slots__ = ("id", "agreement")
    ID_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    agreement: float
    def __init__(self, id: _Optional[str] = ..., agreement: _Optional[float] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("retrieve_ms", "queue_ms", "load_ms", "prefill_ms", "first_token_ms", "decode_ms", "total_ms", "engine_ttft_ms", "select_ms", "select_wait_ms")
    RETRIEVE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    LOAD_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    SELECT_MS_FIELD_NUMBER: _ClassVar[int]
    SELECT_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    retrieve_ms: float
    queue_ms: float
    load_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    total_ms: float
    engine_ttft_ms: float
    select_ms: float
    select_wait_ms: float
    def __init__(self, retrieve_ms: _Optional[float] = ..., queue_ms: _Optional[float] = ..., load_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., first_token_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., engine_ttft_ms: _Optional[float] = ..., select_ms: _Optional[float] = ..., select_wait_ms: _Optional[float] = ...) -> None: ...
