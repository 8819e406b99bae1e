"""What the planner of alerts reads and what it answers: plain data, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

Key = tuple[str, UUID]  # an alert's identity: rule and entity


@dataclass(frozen=True)
class Entity:
    """What an alert is about: a node, a model, or a team. `labels` are what silences match beside the rule."""

    kind: str
    id: UUID
    name: str
    team_id: UUID
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """A GPU that an alert is about, with what was seen of it."""

    gpu: str  # UUID
    index: int
    metric: str = ""
    observed: float | None = None
    expected: float | None = None
    scale: float | None = None  # of the residual; the band is expected ± 4 of them
    z: float | None = None
    kind: str = ""  # spike | trend_break | level_shift
    note: str = ""


@dataclass(frozen=True)
class Observation:
    """That a rule's condition holds for an entity right now. What isn't observed doesn't hold, or can't be judged."""

    rule: str
    entity: Entity
    members: tuple[Member, ...] = ()
    gpus: int = 0  # how many the node has
    severity: str = ""  # worse than the rule's own
    share: float | None = None  # of a model's answers that came in time
    text: str = ""  # what the node itself says of it
    since: datetime | None = None
    node_id: UUID | None = None
    simulated: bool = False

    @property
    def key(self) -> Key:
        return (self.rule, self.entity.id)


@dataclass(frozen=True)
class RuleView:
    """A rule as the planner needs it; `for_s` is never empty here."""

    slug: str
    kind: str
    metric: str
    severity: str
    for_s: float
    keep_firing_s: float
    enabled: bool = True


@dataclass(frozen=True)
class AlertView:
    """An open alert."""

    id: UUID
    rule: str
    entity_id: UUID
    state: str
    severity: str
    pending_at: datetime
    bad_at: datetime
    firing_at: datetime | None = None
    node_id: UUID | None = None
    gpus: frozenset[str] = frozenset()  # its members
    inhibited_by: UUID | None = None

    @property
    def key(self) -> Key:
        return (self.rule, self.entity_id)


@dataclass(frozen=True)
class Snapshot:
    """Everything that one evaluation decides on."""

    rules: Mapping[str, RuleView]
    observations: tuple[Observation, ...]
    alerts: tuple[AlertView, ...]  # the open ones
    present: frozenset[UUID]  # entities of open alerts that still exist and are watched
    away: frozenset[UUID] = frozenset()  # nodes that don't poll: their conditions are old
    silent: frozenset[UUID] = frozenset()  # nodes without samples for minutes
    idle: frozenset[UUID] = frozenset()  # models without requests in the window
    unheard: frozenset[str] = frozenset()  # GPUs without samples, or of which the detector has none
    blind: bool = False  # the detector has judged nothing for minutes


@dataclass(frozen=True)
class Open:
    """Write a new, pending alert."""

    observation: Observation
    severity: str
    summary: str
    reason: str


@dataclass(frozen=True)
class Move:
    """Change an alert's state."""

    alert: UUID
    to: str
    reason: str


@dataclass(frozen=True)
class Update:
    """Write what an open alert now looks like; its state stays."""

    alert: UUID
    observation: Observation
    severity: str
    summary: str
    reason: str


@dataclass(frozen=True)
class Inhibit:
    """Note which alert speaks for this one (None: it speaks for itself again)."""

    alert: UUID
    by: UUID | None


Action = Open | Move | Update | Inhibit
