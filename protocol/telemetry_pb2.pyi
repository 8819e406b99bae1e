from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InferenceRow(_message.Message):
    __slots__ = ("request_id", "time_unix_us", "model", "version", "digest", "deployment", "status", "error_code", "user_key", "session_id", "input_sha256", "input_items", "input_tokens", "batch_size", "queue_us", "preprocess_us", "compute_us", "postprocess_us", "total_us", "entropy", "score", "predicted_label")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    USER_KEY_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_SHA256_FIELD_NUMBER: _ClassVar[int]
    INPUT_ITEMS_FIELD_NUMBER: _ClassVar[int]
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PREPROCESS_US_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    POSTPROCESS_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_LABEL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    time_unix_us: int
    model: str
    version: int
    digest: bytes
    deployment: str
    status: int
    error_code: str
    user_key: bytes
    session_id: str
    input_sha256: bytes
    input_items: int
    input_tokens: int
    batch_size: int
    queue_us: int
    preprocess_us: int
    compute_us: int
    postprocess_us: int
    total_us: int
    entropy: float
    score: float
    predicted_label: str
    def __init__(self, request_id: _Optional[str] = ..., time_unix_us: _Optional[int] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., deployment: _Optional[str] = ..., status: _Optional[int] = ..., error_code: _Optional[str] = ..., user_key: _Optional[bytes] = ..., session_id: _Optional[str] = ..., input_sha256: _Optional[bytes] = ..., input_items: _Optional[int] = ..., input_tokens: _Optional[int] = ..., batch_size: _Optional[int] = ..., queue_us: _Optional[int] = ..., preprocess_us: _Optional[int] = ..., compute_us: _Optional[int] = ..., postprocess_us: _Optional[int] = ..., total_us: _Optional[int] = ..., entropy: _Optional[float] = ..., score: _Optional[float] = ..., predicted_label: _Optional[str] = ...) -> None: ...

class ComparisonRow(_message.Message):
    __slots__ = ("request_id", "time_unix_us", "model", "rollout", "stage", "attempt", "deployment", "baseline_version", "candidate_version", "similarity", "baseline_us", "candidate_us", "baseline_status", "candidate_status", "batch_size", "sample", "dropped_before")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    BASELINE_US_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_US_FIELD_NUMBER: _ClassVar[int]
    BASELINE_STATUS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_STATUS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    time_unix_us: int
    model: str
    rollout: str
    stage: int
    attempt: int
    deployment: str
    baseline_version: int
    candidate_version: int
    similarity: float
    baseline_us: int
    candidate_us: int
    baseline_status: int
    candidate_status: int
    batch_size: int
    sample: str
    dropped_before: int
    def __init__(self, request_id: _Optional[str] = ..., time_unix_us: _Optional[int] = ..., model: _Optional[str] = ..., rollout: _Optional[str] = ..., stage: _Optional[int] = ..., attempt: _Optional[int] = ..., deployment: _Optional[str] = ..., baseline_version: _Optional[int] = ..., candidate_version: _Optional[int] = ..., similarity: _Optional[float] = ..., baseline_us: _Optional[int] = ..., candidate_us: _Optional[int] = ..., baseline_status: _Optional[int] = ..., candidate_status: _Optional[int] = ..., batch_size: _Optional[int] = ..., sample: _Optional[str] = ..., dropped_before: _Optional[int] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...

class GpuSamples(_message.Message):
    __slots__ = ("gpus", "simulated", "time_unix_us", "gpu", "columns")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    simulated: bool
    time_unix_us: bytes
    gpu: bytes
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, gpus: _Optional[_Iterable[str]] = ..., simulated: _Optional[bool] = ..., time_unix_us: _Optional[bytes] = ..., gpu: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class EngineSamples(_message.Message):
    __slots__ = ("deployments", "time_unix_us", "deployment", "columns")
    DEPLOYMENTS_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    deployments: _containers.RepeatedScalarFieldContainer[str]
    time_unix_us: bytes
    deployment: bytes
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, deployments: _Optional[_Iterable[str]] = ..., time_unix_us: _Optional[bytes] = ..., deployment: _Optional[bytes] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class TelemetryBatch(_message.Message):
    __slots__ = ("node", "boot_id", "seq", "clock_offset_s", "inference", "comparison", "gpu", "engine")
    NODE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CLOCK_OFFSET_S_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    node: str
    boot_id: str
    seq: int
    clock_offset_s: float
    inference: _containers.RepeatedCompositeFieldContainer[InferenceRow]
    comparison: _containers.RepeatedCompositeFieldContainer[ComparisonRow]
    gpu: _containers.RepeatedCompositeFieldContainer[GpuSamples]
    engine: _containers.RepeatedCompositeFieldContainer[EngineSamples]
    def __init__(self, node: _Optional[str] = ..., boot_id: _Optional[str] = ..., seq: _Optional[int] = ..., clock_offset_s: _Optional[float] = ..., inference: _Optional[_Iterable[_Union[InferenceRow, _Mapping]]] = ..., comparison: _Optional[_Iterable[_Union[ComparisonRow, _Mapping]]] = ..., gpu: _Optional[_Iterable[_Union[GpuSamples, _Mapping]]] = ..., engine: _Optional[_Iterable[_Union[EngineSamples, _Mapping]]] = ...) -> None: ...
