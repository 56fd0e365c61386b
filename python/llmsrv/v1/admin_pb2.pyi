import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SERVER_STATE_UNSPECIFIED: _ClassVar[ServerState]
    SERVER_STATE_STARTING: _ClassVar[ServerState]
    SERVER_STATE_SERVING: _ClassVar[ServerState]
    SERVER_STATE_DRAINING: _ClassVar[ServerState]
    SERVER_STATE_DRAINED: _ClassVar[ServerState]
    SERVER_STATE_FAILED: _ClassVar[ServerState]
    SERVER_STATE_STALLED: _ClassVar[ServerState]
SERVER_STATE_UNSPECIFIED: ServerState
SERVER_STATE_STARTING: ServerState
SERVER_STATE_SERVING: ServerState
SERVER_STATE_DRAINING: ServerState
SERVER_STATE_DRAINED: ServerState
SERVER_STATE_FAILED: ServerState
SERVER_STATE_STALLED: ServerState

class GetServerInfoRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "commit", "backend", "devices", "start_time", "state", "kv_blocks", "kv_block_tokens", "max_running", "max_waiting", "max_batch_tokens")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TOKENS_FIELD_NUMBER: _ClassVar[int]
    version: str
    commit: str
    backend: str
    devices: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    state: ServerState
    kv_blocks: int
    kv_block_tokens: int
    max_running: int
    max_waiting: int
    max_batch_tokens: int
    def __init__(self, version: _Optional[str] = ..., commit: _Optional[str] = ..., backend: _Optional[str] = ..., devices: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[ServerState, str]] = ..., kv_blocks: _Optional[int] = ..., kv_block_tokens: _Optional[int] = ..., max_running: _Optional[int] = ..., max_waiting: _Optional[int] = ..., max_batch_tokens: _Optional[int] = ...) -> None: ...

class SequenceStateStats(_message.Message):
    __slots__ = ("current", "entered", "time")
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    current: int
    entered: int
    time: _duration_pb2.Duration
    def __init__(self, current: _Optional[int] = ..., entered: _Optional[int] = ..., time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LatencyStats(_message.Message):
    __slots__ = ("count", "p50", "p90", "p99")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    count: int
    p50: _duration_pb2.Duration
    p90: _duration_pb2.Duration
    p99: _duration_pb2.Duration
    def __init__(self, count: _Optional[int] = ..., p50: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., p90: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., p99: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("tenant", "others", "requests_per_second", "prompt_tokens_per_second", "generation_tokens_per_second")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    others: bool
    requests_per_second: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    def __init__(self, tenant: _Optional[str] = ..., others: bool = ..., requests_per_second: _Optional[float] = ..., prompt_tokens_per_second: _Optional[float] = ..., generation_tokens_per_second: _Optional[float] = ...) -> None: ...

class RecentStats(_message.Message):
    __slots__ = ("requests_per_second", "prompt_tokens_per_second", "generation_tokens_per_second", "first_token", "between_tokens", "request", "tenants")
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    requests_per_second: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    first_token: LatencyStats
    between_tokens: LatencyStats
    request: LatencyStats
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    def __init__(self, requests_per_second: _Optional[float] = ..., prompt_tokens_per_second: _Optional[float] = ..., generation_tokens_per_second: _Optional[float] = ..., first_token: _Optional[_Union[LatencyStats, _Mapping]] = ..., between_tokens: _Optional[_Union[LatencyStats, _Mapping]] = ..., request: _Optional[_Union[LatencyStats, _Mapping]] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ...) -> None: ...

class EngineStats(_message.Message):
    __slots__ = ("time", "state", "running", "waiting", "kv_blocks_used", "kv_blocks_total", "steps", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "preemptions", "draft_tokens", "accepted_draft_tokens", "requests", "kv_blocks_cached", "kv_blocks_free", "sequence_states", "recomputed_tokens", "swap_outs", "swap_ins", "swapped_out_blocks", "swapped_in_blocks", "swap_blocks_held", "swap_blocks_total", "copied_prefix_tokens", "utilization", "swap_bytes_per_second", "step_time_per_token", "oldest_wait", "deadline_drops", "recent")
    class RequestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SequenceStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SequenceStateStats
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SequenceStateStats, _Mapping]] = ...) -> None: ...
    TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_QUERIES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    KV_BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_STATES_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUTS_FIELD_NUMBER: _ClassVar[int]
    SWAP_INS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCKS_HELD_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COPIED_PREFIX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    SWAP_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OLDEST_WAIT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_DROPS_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    state: ServerState
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    preemptions: int
    draft_tokens: int
    accepted_draft_tokens: int
    requests: _containers.ScalarMap[str, int]
    kv_blocks_cached: int
    kv_blocks_free: int
    sequence_states: _containers.MessageMap[str, SequenceStateStats]
    recomputed_tokens: int
    swap_outs: int
    swap_ins: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    swap_blocks_held: int
    swap_blocks_total: int
    copied_prefix_tokens: int
    utilization: float
    swap_bytes_per_second: float
    step_time_per_token: _duration_pb2.Duration
    oldest_wait: _duration_pb2.Duration
    deadline_drops: int
    recent: RecentStats
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[ServerState, str]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_blocks_used: _Optional[int] = ..., kv_blocks_total: _Optional[int] = ..., steps: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., generation_tokens: _Optional[int] = ..., prefix_cache_queries: _Optional[int] = ..., prefix_cache_hits: _Optional[int] = ..., preemptions: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., requests: _Optional[_Mapping[str, int]] = ..., kv_blocks_cached: _Optional[int] = ..., kv_blocks_free: _Optional[int] = ..., sequence_states: _Optional[_Mapping[str, SequenceStateStats]] = ..., recomputed_tokens: _Optional[int] = ..., swap_outs: _Optional[int] = ..., swap_ins: _Optional[int] = ..., swapped_out_blocks: _Optional[int] = ..., swapped_in_blocks: _Optional[int] = ..., swap_blocks_held: _Optional[int] = ..., swap_blocks_total: _Optional[int] = ..., copied_prefix_tokens: _Optional[int] = ..., utilization: _Optional[float] = ..., swap_bytes_per_second: _Optional[float] = ..., step_time_per_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., oldest_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., deadline_drops: _Optional[int] = ..., recent: _Optional[_Union[RecentStats, _Mapping]] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: EngineStats
    def __init__(self, stats: _Optional[_Union[EngineStats, _Mapping]] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("interval", "model")
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    interval: _duration_pb2.Duration
    model: str
    def __init__(self, interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., model: _Optional[str] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: EngineStats
    def __init__(self, stats: _Optional[_Union[EngineStats, _Mapping]] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("ids", "all")
    class All(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    class Ids(_message.Message):
        __slots__ = ("request_ids",)
        REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
        request_ids: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...
    IDS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    ids: AbortRequest.Ids
    all: AbortRequest.All
    def __init__(self, ids: _Optional[_Union[AbortRequest.Ids, _Mapping]] = ..., all: _Optional[_Union[AbortRequest.All, _Mapping]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted_request_ids",)
    ABORTED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    aborted_request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, aborted_request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout",)
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    timeout: _duration_pb2.Duration
    def __init__(self, timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("state", "in_flight")
    STATE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    state: ServerState
    in_flight: int
    def __init__(self, state: _Optional[_Union[ServerState, str]] = ..., in_flight: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: ServerState
    def __init__(self, state: _Optional[_Union[ServerState, str]] = ...) -> None: ...

class ClearPrefixCacheRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class ClearPrefixCacheResponse(_message.Message):
    __slots__ = ("blocks_freed",)
    BLOCKS_FREED_FIELD_NUMBER: _ClassVar[int]
    blocks_freed: int
    def __init__(self, blocks_freed: _Optional[int] = ...) -> None: ...
