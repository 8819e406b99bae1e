"""What agent and control plane say to each other: one definition for both sides.

Unknown fields are ignored (a newer peer may send more), missing ones are an error. Times are UTC.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

PROTOCOL_VERSION = 1
OLDEST_SERVED = 1
TELEMETRY_MAX_ROWS = 1_000
TELEMETRY_MAX_SAMPLES = 10_000  # rows of packed samples in one batch
TELEMETRY_MAX_BYTES = 4 << 20

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,63}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


def _without_nul(text: str) -> str:
    return text.replace("\x00", "")


def _all_without_nul(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_nul(str(name)): _all_without_nul(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_all_without_nul(item) for item in value]
    return _without_nul(value) if isinstance(value, str) else value


# PostgreSQL holds no NUL in a text. What a node says may quote a hostile file, and must not be refused for that.
Storable = AfterValidator(_without_nul)
Facts = Annotated[dict[str, Any], AfterValidator(_all_without_nul)]
Sentence = Annotated[str, StringConstraints(max_length=1_000), Storable]
Short = Annotated[str, StringConstraints(max_length=63), Storable]
Version = Annotated[str, StringConstraints(max_length=64), Storable]
Address = Annotated[str, StringConstraints(max_length=255), Storable]
Code = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,63}$")]
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]  # what a bigint column holds


class Message(BaseModel):
    """Base of all messages: immutable once parsed."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class DeploymentState(StrEnum):
    """How far a node has come with one deployment; the order is the usual one, steps may be skipped."""

    ASSIGNED = "assigned"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    LOADING = "loading"
    WARMING = "warming"
    RUNNING = "running"
    FAILED = "failed"
    EXPIRED = "expired"


class Role(StrEnum):
    """Which side of a comparison a deployment is; outside rollouts every deployment is the baseline."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Deployment(Message):
    """One artifact that a node is to serve, as its signed assignment states it."""

    id: UUID
    model: Slug
    version: int = Field(ge=1)
    digest: Digest
    length: int = Field(ge=1)
    role: Role
    weight: int = Field(ge=0, le=100)  # percent of this gateway's requests for the model
    mirror_percent: int = Field(ge=0, le=100)
    rollout: UUID | None = None
    stage: int | None = None
    attempt: int | None = None


class AssignmentBundle(Message):
    """A node's statement with the proof that the director signed it; all fields base64 but index."""

    statement: str
    index: int = Field(ge=0)
    path: list[str]
    envelope: str


class EnrolRequest(Message):
    token: str = Field(min_length=16, max_length=200)
    public_key: str  # base64 of the 32 raw Ed25519 bytes
    name: Slug
    hostname: Address
    zone: Slug
    agent_version: Version
    protocol: int
    gateway_url: Address = ""
    hardware: dict[str, Any] = Field(default_factory=dict)
    signature: str  # base64 Ed25519 over canonical_enrol(...)


class EnrolResponse(Message):
    node: UUID
    phase: str
    generation: int
    expires: AwareDatetime
    trust_root: list[str]  # base64 root envelopes, oldest first
    server_time: float


class RenewResponse(Message):
    generation: int
    expires: AwareDatetime
    server_time: float


class DeploymentReport(Message):
    id: UUID
    digest: Digest
    state: DeploymentState
    reason_code: Short = ""
    reason: Sentence = ""
    warmup_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    since: AwareDatetime
    weight_in_force: int = Field(default=0, ge=0, le=100)  # what the gateway routes now


class Refusal(Message):
    """Something the node would not accept, and why; shown on the node's page."""

    code: Code
    reason: Sentence
    sequence: Count | None = None
    digest: Annotated[str, StringConstraints(max_length=128), Storable] | None = None
    at: AwareDatetime


class ConditionReport(Message):
    type: str = Field(pattern=r"^[A-Za-z0-9]{1,63}$")
    status: Literal["true", "false", "unknown"]
    reason: Short = ""
    message: Sentence = ""


class PollRequest(Message):
    boot_id: UUID
    report_seq: int = Field(ge=1, le=(1 << 63) - 1)
    agent_version: Version
    observed_epoch: int = Field(default=0, ge=0, le=(1 << 31) - 1)
    observed_sequence: Count = 0
    observed_issued: AwareDatetime | None = None
    clock_offset_s: float = Field(default=0.0, allow_inf_nan=False)
    deployments: list[DeploymentReport] = Field(default_factory=list, max_length=1_000)
    conditions: list[ConditionReport] = Field(default_factory=list, max_length=100)
    refusals: list[Refusal] = Field(default_factory=list, max_length=50)
    gateway_url: Address = ""
    hardware: Facts | None = None  # as at enrolment; on the first poll of a boot


class PollResponse(Message):
    server_time: float
    interval_s: float
    jitter_s: float
    phase: str
    root_version: int
    assignment: AssignmentBundle | None = None


class WaitResponse(Message):
    sequence: int
    issued: AwareDatetime | None


class RootResponse(Message):
    trust_root: list[str]  # base64 root envelopes of the versions asked for, oldest first


class TelemetryAck(Message):
    boot_id: UUID
    seq: int  # the highest batch stored without a gap
    dropped_rows: int = 0  # rows of this batch that lay too far ahead, too far back, or were malformed


class Problem(Message):
    """RFC 9457 problem document with our stable code."""

    title: str
    status: int
    detail: str
    code: Code
    server_time: float | None = None
    challenge: str | None = None
    stored_seq: int | None = None  # with sequence_gap: the highest batch stored without a gap
