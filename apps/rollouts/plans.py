"""What the planner sees and what it may order: frozen data, no behaviour beyond questions about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from apps.rollouts.findings import Finding
from apps.rollouts.strategy import AnyStage

RUNNING = "running"
SILENT = "It has been silent for three of its polls."
DEAD = frozenset({"failed", "expired"})


class Which(StrEnum):
    """Which artifact: the one that the node served before, or the rollout's."""

    PREVIOUS = "previous"
    CANDIDATE = "candidate"
    OTHER = "other"  # neither: somebody changed it by hand; no stage wants it


@dataclass(frozen=True)
class Spec:
    """One artifact that a node should serve: `role` is baseline or candidate, percents of its gateway's requests."""

    which: Which
    role: str
    weight: int
    mirror_percent: int = 0


@dataclass(frozen=True)
class Target:
    """All that a node should serve of the model, and the stage that says so (None: no rollout does)."""

    specs: tuple[Spec, ...]
    stage: int | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class Seen:
    """What a node says of one artifact; `state` is empty when it doesn't mention it."""

    state: str = ""
    weight: int = 0  # in force at its gateway
    reason: str = ""


@dataclass(frozen=True)
class NodeView:
    """One participant as it stands."""

    id: UUID
    name: str
    zone: str
    reachable: bool  # may talk, and did lately
    takes_work: bool  # not cordoned, draining or locked
    accepted_newest: bool  # the assignment it accepted is the one that says what is desired now
    has_previous: bool
    desired: Target
    candidate: Seen = Seen()
    previous: Seen = Seen()
    sick: str = ""  # why its evidence can't count: a hardware fault is no regression
    silent: str = ""  # it doesn't answer at present
    drains: bool = False  # its assignment is empty: it serves nothing, by order
    excluded: str = ""  # why it is left out already, on record

    @property
    def awaited(self) -> bool:
        """Whether a stage waits for this node."""
        return self.reachable and self.takes_work and not self.sick

    @property
    def failed(self) -> bool:
        return self.candidate.state in DEAD


@dataclass(frozen=True)
class StageView:
    index: int
    spec: AnyStage
    attempt: int = 0
    started_at: datetime | None = None
    ready_at: datetime | None = None
    deadline: datetime | None = None
    selected: frozenset[UUID] | None = None  # the nodes of a canary on some nodes; None: all


@dataclass(frozen=True)
class Decision:
    """What a person said to the snapshot that is up for decision."""

    approve: bool
    user: str
    reason: str


@dataclass(frozen=True)
class Snapshot:
    """A rollout as it stands at one reading of the clock."""

    version: str  # «v3»
    pool: str
    phase: str
    pause_reason: str
    stage_index: int
    stages: tuple[StageView, ...]
    phase_deadline: datetime
    nodes: tuple[NodeView, ...]
    findings: tuple[Finding, ...] = ()  # of the stage that is being judged
    decisions: tuple[Decision, ...] = ()  # in order, on the current snapshot of evidence, plan and attempt
    frozen: tuple[tuple[str, str], ...] = ()  # the required verdicts that the snapshot shows: (metric, verdict)
    held: str = ""  # a sentence, when the digest has been put on hold meanwhile

    @property
    def stage(self) -> StageView:
        return self.stages[self.stage_index]


@dataclass(frozen=True)
class ExcludeNode:
    node: UUID
    reason: str


@dataclass(frozen=True)
class IncludeNode:
    """A node that was sick in an earlier stage, or silent for a while, and is well again counts again."""

    node: UUID


@dataclass(frozen=True)
class SetWeights:
    node: UUID
    target: Target


@dataclass(frozen=True)
class StartStage:
    """Begin a stage: the first one, or the next after the current one passed (`sentence` says on what)."""

    index: int
    phase: str  # progressing, paused (for approval) or promoting, by the kind of stage
    deadline: datetime
    sentence: str
    promoted: bool = True
    selected: tuple[UUID, ...] | None = None


@dataclass(frozen=True)
class MarkReady:
    """Every awaited node serves the stage: evidence counts from now."""

    deadline: datetime


@dataclass(frozen=True)
class ExtendWindow:
    deadline: datetime
    sentence: str


@dataclass(frozen=True)
class Pause:
    reason: str
    deadline: datetime
    sentence: str


@dataclass(frozen=True)
class Resume:
    phase: str
    deadline: datetime
    sentence: str


@dataclass(frozen=True)
class RollBack:
    sentence: str
    deadline: datetime


@dataclass(frozen=True)
class CompleteReturn:
    """Every reachable node is back on what it served before: ends a rollback or an abort."""

    phase: str


@dataclass(frozen=True)
class Complete:
    sentence: str


@dataclass(frozen=True)
class Remind:
    """Tell people that nodes do not come back; nothing else can end this phase but them or the nodes."""

    sentence: str
    deadline: datetime


@dataclass(frozen=True)
class Await:
    """Look again at `until` at the latest."""

    until: datetime


Action = (
    ExcludeNode
    | IncludeNode
    | SetWeights
    | StartStage
    | MarkReady
    | ExtendWindow
    | Pause
    | Resume
    | RollBack
    | CompleteReturn
    | Complete
    | Remind
    | Await
)

# What moves the rollout: at most one of these in a plan
MOVES = (StartStage, Pause, Resume, RollBack, CompleteReturn, Complete)


@dataclass(frozen=True)
class Limits:
    """Deadlines of phases that no stage sets, in seconds."""

    pending_s: float = 600.0
    returning_s: float = 600.0
    decision_s: float = 4 * 3600.0  # a person is asked
    operator_s: float = 24 * 3600.0  # a person has paused
    look_s: float = 2.0
    looks_per_window: int = 60


DEFAULT_LIMITS = Limits()
