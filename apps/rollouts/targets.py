"""What each node should serve in each stage, and when it does.

Load, warm up, then route: a candidate gets its weight only on a node that reports it running, and what it replaces
stays until then.
"""

from __future__ import annotations

from apps.rollouts.plans import RUNNING, NodeView, Snapshot, Spec, StageView, Target, Which
from apps.rollouts.strategy import AnalysingStage, CanaryStage, FullStage

BASELINE, CANDIDATE = "baseline", "candidate"
_RETURNING = ("rolling_back", "aborting")


def target(s: Snapshot, judged: StageView | None, node: NodeView) -> Target | None:
    """Return what `node` should serve now; None to leave it as it is."""
    if s.phase in _RETURNING:
        return _return(node)
    if isinstance(s.stage.spec, FullStage):
        return _full(s.stage, node)
    if judged is None or not isinstance(judged.spec, AnalysingStage):
        return None
    return _compare(judged, judged.spec, node)


def _return(node: NodeView) -> Target:
    if not node.has_previous:
        return Target(())
    return Target((Spec(Which.PREVIOUS, BASELINE, 100),))


def _full(stage: StageView, node: NodeView) -> Target | None:
    if not node.takes_work:
        return None
    replaces = (Spec(Which.CANDIDATE, BASELINE, 100),)
    switched = node.desired.specs == replaces  # once it serves alone it stays, whatever it reports meanwhile
    if not node.has_previous or switched or node.candidate.state == RUNNING:
        return Target(replaces, stage.index, stage.attempt)
    beside = (Spec(Which.PREVIOUS, BASELINE, 100), Spec(Which.CANDIDATE, CANDIDATE, 0))
    return Target(beside, stage.index, stage.attempt)


def _compare(stage: StageView, spec: AnalysingStage, node: NodeView) -> Target | None:
    if not node.has_previous or not node.takes_work:
        return None  # nothing to compare with, or cordoned: it keeps what it has
    if not _selected(stage, node):
        # a candidate that an earlier stage has loaded stays warm and mirrored; nothing new is loaded
        if all(each.which is Which.PREVIOUS for each in node.desired.specs):
            return None
        weight = 0
    else:
        weight = spec.weight if node.candidate.state == RUNNING else 0
    specs = (
        Spec(Which.PREVIOUS, BASELINE, 100 - weight),
        Spec(Which.CANDIDATE, CANDIDATE, weight, spec.mirror_percent),
    )
    return Target(specs, stage.index, stage.attempt)


def _selected(stage: StageView, node: NodeView) -> bool:
    return stage.selected is None or node.id in stage.selected


def takes_part(s: Snapshot, judged: StageView | None, node: NodeView) -> bool:
    """Tell whether the current stage needs this node."""
    if isinstance(s.stage.spec, FullStage):
        return True
    return judged is not None and node.has_previous and _selected(judged, node)


def is_ready(s: Snapshot, judged: StageView | None, node: NodeView) -> bool:
    """Tell whether the node serves what the stage wants, by its own report."""
    if node.candidate.state != RUNNING or not node.accepted_newest:
        return False
    if isinstance(s.stage.spec, FullStage):
        return node.candidate.weight == 100 and not node.previous.state
    if judged is None or not isinstance(judged.spec, AnalysingStage):
        return False
    weight = judged.spec.weight if isinstance(judged.spec, CanaryStage) else 0
    return node.candidate.weight == weight and node.previous.state == RUNNING


def is_back(node: NodeView) -> bool:
    """Tell whether the node reports what it served before, alone, with all its requests."""
    if not node.accepted_newest or node.candidate.state:
        return False
    return not node.has_previous or node.drains or (node.previous.state == RUNNING and node.previous.weight == 100)
