"""The planner by table: every phase, every way out, the order of precedence. No clock, no database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from apps.rollouts.findings import Finding
from apps.rollouts.planner import judged_stage, plan, worsened
from apps.rollouts.plans import (
    MOVES,
    RUNNING,
    SILENT,
    Await,
    Complete,
    CompleteReturn,
    Decision,
    ExcludeNode,
    ExtendWindow,
    IncludeNode,
    MarkReady,
    NodeView,
    Pause,
    Remind,
    Resume,
    RollBack,
    Seen,
    SetWeights,
    Snapshot,
    Spec,
    StageView,
    StartStage,
    Target,
    Which,
)
from apps.rollouts.strategy import parse_plan

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
WINDOWS = {"min_samples": 1_000, "window_s": 60, "max_duration_s": 300, "ready_s": 120, "bake_s": 20}
PLAN = parse_plan(
    [
        {"kind": "shadow", "percent": 10, **WINDOWS},
        {"kind": "canary", "weight": 10, "mirror_percent": 10, **WINDOWS},
        {"kind": "approval"},
        {"kind": "full", "ready_s": 300},
    ]
)
SHADOW, CANARY, APPROVAL, FULL = range(4)
PASSED = (
    Finding("similarity", True, "successful", sentence="Output similarity is 0.999."),
    Finding("errors", True, "successful", sentence="Error rate is fine."),
    Finding("p99", False, "failed", sentence="p99 is up."),
)
FAILED = (Finding("similarity", True, "failed", sentence="Output similarity is 0.965."), *PASSED[1:])
UNDECIDED = (Finding("similarity", True, "inconclusive", sentence="Output similarity is 0.98."), *PASSED[1:])
NO_DATA = (Finding("similarity", True, "no_data", sentence="Output similarity: 3 of 1,000 pairs needed so far."),)
ERROR = (Finding("similarity", True, "error", sentence="similarity: a similarity lies outside 0 to 1."),)

ONLY_OLD = Target((Spec(Which.PREVIOUS, "baseline", 100),))
ONLY_NEW = Target((Spec(Which.CANDIDATE, "baseline", 100),), FULL, 1)


def beside(stage: int, weight: int, mirror: int = 10) -> Target:
    """The candidate beside the baseline, with `weight` percent of the requests."""
    specs = (Spec(Which.PREVIOUS, "baseline", 100 - weight), Spec(Which.CANDIDATE, "candidate", weight, mirror))
    return Target(specs, stage, 1)


def node(name: str = "node-1", **changes: Any) -> NodeView:
    """A healthy node that serves the old version alone."""
    fields: dict[str, Any] = {
        "id": UUID(int=int(name[-1])),
        "name": name,
        "zone": f"zone-{'abc'[int(name[-1]) - 1]}",
        "reachable": True,
        "takes_work": True,
        "accepted_newest": True,
        "has_previous": True,
        "desired": ONLY_OLD,
        "previous": Seen(RUNNING, 100),
    }
    return NodeView(**(fields | changes))


def fleet(**changes: Any) -> tuple[NodeView, ...]:
    return tuple(node(f"node-{number}", **changes) for number in (1, 2, 3))


def shadowing(**changes: Any) -> tuple[NodeView, ...]:
    """Three nodes that do what the shadow stage wants."""
    return fleet(**({"desired": beside(SHADOW, 0), "candidate": Seen(RUNNING, 0)} | changes))


def canarying(**changes: Any) -> tuple[NodeView, ...]:
    fields = {"desired": beside(CANARY, 10), "candidate": Seen(RUNNING, 10), "previous": Seen(RUNNING, 90)}
    return fleet(**(fields | changes))


def stages(index: int, **changes: Any) -> tuple[StageView, ...]:
    """The plan's stages, the current one at `index` started a minute ago and ready half a minute ago."""
    fields: dict[str, Any] = {
        "attempt": 1,
        "started_at": NOW - timedelta(seconds=60),
        "ready_at": NOW - timedelta(seconds=30),
        "deadline": NOW + timedelta(seconds=30),
    }
    views = [StageView(i, spec) for i, spec in enumerate(PLAN)]
    for earlier in range(index):
        views[earlier] = replace(views[earlier], **fields)
    views[index] = replace(views[index], **(fields | changes))
    return tuple(views)


def snapshot(phase: str, index: int = SHADOW, **changes: Any) -> Snapshot:
    stage_changes = changes.pop("stage", {})
    fields: dict[str, Any] = {
        "version": "v2",
        "pool": "default",
        "phase": phase,
        "pause_reason": "",
        "stage_index": index,
        "stages": stages(index, **stage_changes),
        "phase_deadline": NOW + timedelta(hours=1),
        "nodes": shadowing() if index == SHADOW else canarying(),
    }
    return Snapshot(**(fields | changes))


def progressing(**changes: Any) -> Snapshot:
    return snapshot("progressing", **changes)


def paused(reason: str, index: int = APPROVAL, **changes: Any) -> Snapshot:
    return snapshot("paused", index, pause_reason=reason, **changes)


def moves(s: Snapshot, now: datetime = NOW) -> list[Any]:
    actions = plan(s, now)
    assert isinstance(actions[-1], Await)
    assert actions[-1].until > now
    moving = [action for action in actions if isinstance(action, MOVES)]
    assert len(moving) <= 1
    return moving


def only(s: Snapshot, kind: type, now: datetime = NOW) -> Any:
    found = [action for action in plan(s, now) if isinstance(action, kind)]
    assert len(found) == 1, plan(s, now)
    return found[0]


YES = Decision(True, "lead", "clean")
NO = Decision(False, "lead", "not now")
LATER = NOW + timedelta(hours=2)
NOT_READY = {"ready_at": None}
OVER = {"deadline": NOW - timedelta(seconds=1)}


# ---- which move, if any, each situation leads to -------------------------------------------------------------------

TABLE: list[tuple[str, Snapshot, type | None]] = [
    ("a pending rollout begins", snapshot("pending", nodes=fleet(), stage={"attempt": 0}), StartStage),
    ("without a node it waits", snapshot("pending", nodes=fleet(reachable=False)), None),
    ("until its deadline", snapshot("pending", nodes=(), phase_deadline=NOW), RollBack),
    ("evidence without a verdict waits", progressing(findings=UNDECIDED), None),
    ("evidence that passed promotes", progressing(findings=PASSED), StartStage),
    ("not before it is baked", progressing(findings=PASSED, stage={"ready_at": NOW - timedelta(seconds=19)}), None),
    ("a required failure rolls back", progressing(findings=FAILED), RollBack),
    ("at once, baked or not", progressing(findings=FAILED, stage={"ready_at": NOW}), RollBack),
    ("even past the deadline", progressing(findings=FAILED, stage=OVER), RollBack),
    ("an advisory failure doesn't", progressing(findings=(PASSED[0], PASSED[2])), StartStage),
    ("no finding at all never passes", progressing(findings=()), None),
    ("nor do advisory ones alone", progressing(findings=(replace(PASSED[0], required=False),)), None),
    ("no data never passes", progressing(findings=NO_DATA, stage=OVER), None),
    ("nor does an error", progressing(findings=ERROR), None),
    (
        "at the last deadline no data asks a person",
        progressing(findings=NO_DATA, stage={"ready_at": NOW - timedelta(seconds=300), "deadline": NOW}),
        Pause,
    ),
    (
        "so does an error",
        progressing(findings=ERROR, stage={"ready_at": NOW - timedelta(seconds=300), "deadline": NOW}),
        Pause,
    ),
    ("nodes that aren't ready are waited for", progressing(stage=NOT_READY, nodes=fleet()), None),
    ("until the deadline", progressing(stage=NOT_READY | OVER, nodes=fleet()), Pause),
    (
        "where all of them fail it goes back at once",
        progressing(stage=NOT_READY, nodes=shadowing(candidate=Seen("failed", 0, "no such op"))),
        RollBack,
    ),
    (
        "where one fails it goes back at the deadline",
        progressing(
            stage=NOT_READY | OVER, nodes=(*shadowing()[:2], node("node-3", candidate=Seen("failed", 0, "no such op")))
        ),
        RollBack,
    ),
    (
        "and is waited for before it",
        progressing(stage=NOT_READY, nodes=(*shadowing()[:2], node("node-3", candidate=Seen("failed")))),
        None,
    ),
    ("with every node gone it pauses", progressing(stage=NOT_READY | OVER, nodes=fleet(reachable=False)), Pause),
    ("a held digest is not promoted", progressing(findings=PASSED, held="on hold"), Pause),
    (
        "a node that lost the candidate holds up promotion",
        progressing(findings=PASSED, nodes=(*shadowing()[:2], node("node-3", desired=beside(SHADOW, 0)))),
        None,
    ),
    ("an approval is waited for", paused("approval", findings=PASSED), None),
    ("and promotes", paused("approval", findings=PASSED, decisions=(YES,)), StartStage),
    ("a rejection rolls back", paused("approval", findings=PASSED, decisions=(NO,)), RollBack),
    ("nobody's approval lapses", paused("approval", findings=PASSED, phase_deadline=NOW), RollBack),
    ("a failure while people wait rolls back", paused("approval", findings=FAILED), RollBack),
    ("whatever they said", paused("approval", findings=FAILED, decisions=(YES,)), RollBack),
    (
        "an approval of evidence that worsened does nothing",
        paused("approval", findings=UNDECIDED, decisions=(YES,), frozen=(("similarity", "successful"),)),
        None,
    ),
    (
        "an approval of evidence that was as it is promotes",
        paused("approval", findings=UNDECIDED, decisions=(YES,), frozen=(("similarity", "inconclusive"),)),
        StartStage,
    ),
    (
        "an approval does nothing on a held digest",
        paused("approval", findings=PASSED, decisions=(YES,), held="x"),
        None,
    ),
    ("an undecided stage waits for a person", paused("inconclusive", CANARY, findings=NO_DATA), None),
    ("who may settle it", paused("inconclusive", CANARY, findings=NO_DATA, decisions=(YES,)), StartStage),
    ("or refuse it", paused("inconclusive", CANARY, findings=NO_DATA, decisions=(NO,)), RollBack),
    ("or not", paused("inconclusive", CANARY, findings=NO_DATA, phase_deadline=NOW), RollBack),
    ("evidence that becomes clear resumes it", paused("inconclusive", CANARY, findings=PASSED), Resume),
    ("a person's pause promotes nothing", paused("operator", CANARY, findings=PASSED), None),
    ("not even with approvals", paused("operator", CANARY, findings=PASSED, decisions=(YES,)), None),
    ("and still rolls back", paused("operator", CANARY, findings=FAILED), RollBack),
    ("and ends", paused("operator", CANARY, findings=PASSED, phase_deadline=NOW), RollBack),
    ("late nodes that come resume it", paused("nodes", CANARY, findings=NO_DATA), Resume),
    ("late nodes that don't are waited for", paused("nodes", CANARY, nodes=fleet(), stage=NOT_READY), None),
    ("for so long", paused("nodes", CANARY, nodes=fleet(), stage=NOT_READY, phase_deadline=NOW), RollBack),
    ("promoting waits for nodes", snapshot("promoting", FULL), None),
    (
        "and completes when they serve it alone",
        snapshot("promoting", FULL, nodes=fleet(desired=ONLY_NEW, candidate=Seen(RUNNING, 100), previous=Seen())),
        Complete,
    ),
    (
        "not while the old version is still there",
        snapshot("promoting", FULL, nodes=fleet(desired=ONLY_NEW, candidate=Seen(RUNNING, 100))),
        None,
    ),
    ("promoting that hangs asks a person", snapshot("promoting", FULL, stage=OVER), Pause),
    (
        "promoting that fails everywhere goes back",
        snapshot("promoting", FULL, nodes=canarying(candidate=Seen("failed", 0, "out of memory"))),
        RollBack,
    ),
    ("a rollback goes on", snapshot("rolling_back", CANARY), None),
    ("and is complete when every node is back", snapshot("rolling_back", CANARY, nodes=fleet()), CompleteReturn),
    ("an abort likewise", snapshot("aborting", CANARY, nodes=fleet()), CompleteReturn),
    (
        "whatever the evidence says by now",
        snapshot("rolling_back", CANARY, nodes=fleet(), findings=PASSED),
        CompleteReturn,
    ),
    ("an abort isn't turned by approvals", snapshot("aborting", APPROVAL, findings=PASSED, decisions=(YES,)), None),
]


@pytest.mark.parametrize(("s", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_situation_leads_to_its_move(s: Snapshot, expected: type | None) -> None:
    found = moves(s)
    assert [type(action) for action in found] == ([] if expected is None else [expected])


@pytest.mark.parametrize("phase", ["completed", "rolled_back", "aborted", "superseded"])
def test_what_has_ended_stays_as_it_is(phase: str) -> None:
    assert plan(snapshot(phase), NOW) == []


OPEN = [
    ("pending", "", SHADOW), ("progressing", "", SHADOW), ("progressing", "", CANARY), ("paused", "approval", APPROVAL),
    ("paused", "inconclusive", CANARY), ("paused", "operator", CANARY), ("paused", "nodes", CANARY),
    ("paused", "nodes", FULL), ("paused", "operator", FULL), ("promoting", "", FULL), ("rolling_back", "", CANARY),
    ("aborting", "", CANARY),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "reason", "index"), OPEN)
@pytest.mark.parametrize("ready_at", [None, NOW - timedelta(days=2)])
def test_every_phase_leaves_by_itself_or_calls_for_help_when_its_time_is_over(phase, reason, index, ready_at) -> None:
    s = snapshot(
        phase,
        index,
        pause_reason=reason,
        nodes=fleet(reachable=phase in ("rolling_back", "aborting"), accepted_newest=False),
        phase_deadline=NOW - timedelta(seconds=1),
        stage={"deadline": NOW - timedelta(seconds=1), "ready_at": ready_at},
    )
    actions = plan(s, NOW)
    assert any(isinstance(action, (*MOVES, Remind)) for action in actions)


@pytest.mark.parametrize(("phase", "reason", "index"), OPEN)
@pytest.mark.parametrize("findings", [(), PASSED, FAILED, UNDECIDED, NO_DATA, ERROR])
@pytest.mark.parametrize("decisions", [(), (YES,), (NO,)])
def test_nothing_is_promoted_out_of_an_approval_but_by_one(phase, reason, index, findings, decisions) -> None:
    nodes = shadowing() if index == SHADOW else canarying()
    s = snapshot(phase, index, pause_reason=reason, findings=findings, decisions=decisions, nodes=nodes)
    for action in moves(s):
        if isinstance(action, StartStage) and index == APPROVAL:
            assert decisions == (YES,)
            assert reason == "approval"
        if isinstance(action, (StartStage, Complete)):
            assert findings is not FAILED or phase in ("pending", "promoting")
            assert phase not in ("rolling_back", "aborting")


# ---- what the moves say ---------------------------------------------------------------------------------------------


def test_the_decision_names_the_evidence() -> None:
    action = only(progressing(findings=FAILED), RollBack)
    assert action.sentence == "Output similarity is 0.965: v2 was rolled back in shadow 10 %."
    late = only(paused("approval", findings=FAILED), RollBack)
    assert late.sentence == "Output similarity is 0.965: v2 was rolled back in canary 10 %."
    rejected = only(paused("approval", findings=PASSED, decisions=(NO,)), RollBack)
    assert rejected.sentence == "lead rejected it («not now»): v2 was rolled back in approval."
    broken = shadowing(candidate=Seen("failed", 0, "no such op"))
    failed = only(progressing(stage=NOT_READY, nodes=broken), RollBack)
    assert "3 nodes could not run v2 (node-1: no such op; " in failed.sentence


def test_the_next_stage_sets_phase_and_deadline_by_its_kind() -> None:
    first = only(snapshot("pending", nodes=fleet()), StartStage)
    assert (first.index, first.phase, first.promoted) == (SHADOW, "progressing", False)
    assert first.deadline == NOW + timedelta(seconds=120)
    asks = only(snapshot("progressing", CANARY, findings=PASSED), StartStage)
    assert (asks.index, asks.phase, asks.deadline) == (APPROVAL, "paused", NOW + timedelta(hours=4))
    assert asks.sentence == "Output similarity is 0.999. Error rate is fine."
    everywhere = only(paused("approval", findings=PASSED, decisions=(YES,)), StartStage)
    assert (everywhere.index, everywhere.phase) == (FULL, "promoting")
    assert everywhere.sentence == "Approved by lead: «clean»."


def test_several_approvers_are_all_needed() -> None:
    two = parse_plan([dict(stage) for stage in _with_two_approvers()])
    views = tuple(replace(view, spec=spec) for view, spec in zip(stages(APPROVAL), two, strict=True))
    s = replace(paused("approval", findings=PASSED, decisions=(YES,)), stages=views)
    assert moves(s) == []
    assert isinstance(moves(replace(s, decisions=(YES, replace(YES, user="boss"))))[0], StartStage)
    assert isinstance(moves(replace(s, decisions=(YES, replace(NO, user="boss"))))[0], RollBack)


def _with_two_approvers() -> list[dict[str, Any]]:
    dumped = [stage.model_dump(mode="json") for stage in PLAN]
    dumped[APPROVAL]["approvers"] = 2
    return dumped


def test_low_traffic_extends_the_window_up_to_the_stages_maximum() -> None:
    s = progressing(findings=NO_DATA, stage={"deadline": NOW})
    extended = only(s, ExtendWindow)
    assert extended.deadline == NOW + timedelta(seconds=60)
    assert "3 of 1,000 pairs needed" in extended.sentence
    late = progressing(findings=NO_DATA, stage={"ready_at": NOW - timedelta(seconds=270), "deadline": NOW})
    assert only(late, ExtendWindow).deadline == NOW + timedelta(seconds=30)
    last = progressing(findings=NO_DATA, stage={"ready_at": NOW - timedelta(seconds=300), "deadline": NOW})
    pause = only(last, Pause)
    assert (pause.reason, pause.deadline) == ("inconclusive", NOW + timedelta(hours=4))


def test_the_stage_is_ready_when_every_awaited_node_reports_it() -> None:
    assert only(progressing(stage=NOT_READY), MarkReady).deadline == NOW + timedelta(seconds=60)
    two_of_three = (*shadowing()[:2], node("node-3", desired=beside(SHADOW, 0)))
    assert not [
        action
        for action in plan(progressing(stage=NOT_READY, nodes=two_of_three), NOW)
        if isinstance(action, MarkReady)
    ]
    without_the_third = (*shadowing()[:2], node("node-3", desired=beside(SHADOW, 0), reachable=False))
    assert only(progressing(stage=NOT_READY, nodes=without_the_third), MarkReady)


def test_a_node_that_has_not_accepted_the_newest_assignment_is_not_ready() -> None:
    s = progressing(stage=NOT_READY, nodes=shadowing(accepted_newest=False))
    assert not [action for action in plan(s, NOW) if isinstance(action, MarkReady)]


# ---- weights --------------------------------------------------------------------------------------------------------


def targets_of(s: Snapshot) -> dict[str, Target]:
    names = {each.id: each.name for each in s.nodes}
    return {names[action.node]: action.target for action in plan(s, NOW) if isinstance(action, SetWeights)}


def test_shadow_loads_the_candidate_without_a_share_of_answers() -> None:
    s = progressing(stage=NOT_READY, nodes=fleet())
    assert targets_of(s) == dict.fromkeys(["node-1", "node-2", "node-3"], beside(SHADOW, 0))
    assert targets_of(progressing()) == {}


def test_a_canary_gets_its_weight_only_where_it_runs() -> None:
    loading = fleet(desired=beside(SHADOW, 0), candidate=Seen("loading"))
    assert set(targets_of(snapshot("progressing", CANARY, stage=NOT_READY, nodes=loading)).values()) == {
        beside(CANARY, 0)
    }
    running = fleet(desired=beside(SHADOW, 0), candidate=Seen(RUNNING, 0))
    assert set(targets_of(snapshot("progressing", CANARY, stage=NOT_READY, nodes=running)).values()) == {
        beside(CANARY, 10)
    }
    crashed = canarying(candidate=Seen("failed"))
    assert set(targets_of(snapshot("progressing", CANARY, nodes=crashed)).values()) == {beside(CANARY, 0)}


def test_full_keeps_the_old_version_until_the_new_one_runs() -> None:
    loading = fleet(desired=ONLY_OLD)
    wanted = set(targets_of(snapshot("promoting", FULL, nodes=loading)).values())
    both = (Spec(Which.PREVIOUS, "baseline", 100), Spec(Which.CANDIDATE, "candidate", 0))
    assert wanted == {Target(both, FULL, 1)}
    assert set(targets_of(snapshot("promoting", FULL, nodes=canarying())).values()) == {ONLY_NEW}
    switched = fleet(desired=ONLY_NEW, candidate=Seen("loading"), previous=Seen())
    assert targets_of(snapshot("promoting", FULL, nodes=switched)) == {}
    first = fleet(desired=Target(()), has_previous=False, previous=Seen())
    assert set(targets_of(snapshot("promoting", FULL, nodes=first)).values()) == {ONLY_NEW}


def test_weights_go_on_while_people_are_asked() -> None:
    drifted = (*canarying()[:2], node("node-3", candidate=Seen(RUNNING, 0)))
    assert targets_of(paused("approval", findings=PASSED, nodes=drifted)) == {"node-3": beside(CANARY, 10)}


@pytest.mark.parametrize("phase", ["rolling_back", "aborting"])
def test_going_back_takes_the_candidate_from_every_node_that_has_it(phase: str) -> None:
    nodes = (*canarying()[:2], node("node-3"))
    assert targets_of(snapshot(phase, CANARY, nodes=nodes)) == {"node-1": ONLY_OLD, "node-2": ONLY_OLD}
    cordoned = canarying(takes_work=False, reachable=False)
    assert set(targets_of(snapshot(phase, CANARY, nodes=cordoned)).values()) == {ONLY_OLD}
    nothing_before = fleet(desired=ONLY_NEW, has_previous=False, candidate=Seen(RUNNING, 100), previous=Seen())
    assert set(targets_of(snapshot(phase, FULL, nodes=nothing_before)).values()) == {Target(())}


def test_a_canary_on_some_nodes_leaves_the_others_as_they_are() -> None:
    some = parse_plan([{"kind": "canary", "weight": 10, "nodes": 1, **WINDOWS}, {"kind": "full"}])
    picked = UUID(int=2)
    views = (
        StageView(0, some[0], attempt=1, started_at=NOW, deadline=NOW, selected=frozenset({picked})),
        StageView(1, some[1]),
    )
    s = replace(progressing(nodes=fleet()), stages=views)
    assert targets_of(s) == {"node-2": beside(0, 0)}
    loaded_before = replace(s, nodes=shadowing())
    assert targets_of(loaded_before) == {"node-2": beside(0, 10)}  # the others stay warm and mirrored, as they are


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (1, {UUID(int=2)}),
        (2, {UUID(int=2), UUID(int=3)}),
        (9, {UUID(int=1), UUID(int=2), UUID(int=3)}),
        ({"zone": ["zone-a", "zone-c"]}, {UUID(int=1), UUID(int=3)}),
    ],
)
def test_the_nodes_of_a_canary_are_chosen_once_healthy_ones_first(nodes: Any, expected: set[UUID]) -> None:
    some = parse_plan([{"kind": "canary", "weight": 10, "nodes": nodes, **WINDOWS}, {"kind": "full"}])
    s = snapshot("pending", nodes=(node("node-1", sick="It is hot."), node("node-2"), node("node-3")))
    s = replace(s, stages=tuple(StageView(i, spec) for i, spec in enumerate(some)))
    assert set(only(s, StartStage).selected) == expected


# ---- who counts -----------------------------------------------------------------------------------------------------


def test_a_sick_node_is_left_out_on_record_and_not_waited_for() -> None:
    hot = (*shadowing()[:2], node("node-3", desired=beside(SHADOW, 0), sick="It reports GpuHot."))
    s = progressing(findings=PASSED, nodes=hot)
    assert only(s, ExcludeNode) == ExcludeNode(UUID(int=3), "It reports GpuHot.")
    assert only(s, StartStage)
    known = (*hot[:2], replace(hot[2], excluded="It reports GpuHot."))
    assert not [action for action in plan(progressing(nodes=known), NOW) if isinstance(action, ExcludeNode)]


def test_a_node_that_recovers_counts_from_the_next_stage_on() -> None:
    well = (*shadowing()[:2], replace(shadowing()[2], excluded="It reports GpuHot."))
    assert not [action for action in plan(progressing(nodes=well), NOW) if isinstance(action, IncludeNode)]
    assert only(progressing(findings=PASSED, nodes=well), IncludeNode).node == UUID(int=3)


def test_a_silent_node_is_left_out_while_it_is_silent() -> None:
    silent = replace(shadowing()[2], reachable=False, silent=SILENT)
    assert only(progressing(nodes=(*shadowing()[:2], silent)), ExcludeNode).reason == SILENT
    back = replace(shadowing()[2], excluded=SILENT)
    assert only(progressing(nodes=(*shadowing()[:2], back)), IncludeNode).node == UUID(int=3)


def test_a_rollback_waits_for_reachable_nodes_only_and_says_which() -> None:
    late = snapshot(
        "rolling_back", CANARY, nodes=(*fleet()[:2], node("node-3", desired=ONLY_OLD, candidate=Seen(RUNNING, 10)))
    )
    assert moves(late) == []
    reminded = only(replace(late, phase_deadline=NOW), Remind)
    assert reminded.sentence.startswith("node-3 did not report being back")
    assert reminded.deadline > NOW
    gone = replace(late, nodes=(*late.nodes[:2], replace(late.nodes[2], reachable=False)))
    assert isinstance(moves(gone)[0], CompleteReturn)


@pytest.mark.parametrize(
    ("changes", "back"),
    [
        ({}, True),
        ({"accepted_newest": False}, False),
        ({"candidate": Seen("failed")}, False),
        ({"previous": Seen(RUNNING, 90)}, False),
        ({"previous": Seen("loading", 0)}, False),
        ({"previous": Seen()}, False),
        ({"previous": Seen(), "drains": True}, True),
        ({"previous": Seen(), "has_previous": False, "desired": Target(())}, True),
    ],
)
def test_a_node_is_back_when_it_reports_the_old_version_alone_with_all_requests(changes: Any, back: bool) -> None:
    found = moves(snapshot("rolling_back", CANARY, nodes=(node(**changes),)))
    assert [type(action) for action in found] == ([CompleteReturn] if back else [])


def test_rolling_back_and_aborting_end_in_their_own_phase() -> None:
    assert only(snapshot("rolling_back", CANARY, nodes=fleet()), CompleteReturn).phase == "rolled_back"
    assert only(snapshot("aborting", CANARY, nodes=fleet()), CompleteReturn).phase == "aborted"


def test_a_newcomer_without_the_old_version_joins_at_full() -> None:
    newcomer = node("node-3", has_previous=False, previous=Seen(), desired=Target(()))
    assert "node-3" not in targets_of(progressing(nodes=(*shadowing()[:2], newcomer)))
    assert targets_of(snapshot("promoting", FULL, nodes=(*canarying()[:2], newcomer)))["node-3"] == ONLY_NEW


def test_worsened_names_what_fell() -> None:
    frozen = [("similarity", "successful"), ("errors", "inconclusive"), ("slo_share", "successful")]
    assert worsened(frozen, {"similarity": "successful", "errors": "successful", "slo_share": "successful"}) == []
    assert worsened(frozen, {"similarity": "inconclusive", "errors": "no_data"}) == [
        "similarity",
        "errors",
        "slo_share",
    ]


def test_the_judged_stage_is_the_last_that_gathered_evidence() -> None:
    assert judged_stage(progressing()) is not None
    assert judged_stage(paused("approval")).index == CANARY  # type: ignore[union-attr]
    assert judged_stage(snapshot("promoting", FULL)) is None


def test_looks_come_often_while_nodes_load_and_with_the_window_afterwards() -> None:
    def pace(s: Snapshot) -> float:
        awaited = plan(s, NOW)[-1]
        assert isinstance(awaited, Await)
        return (awaited.until - NOW).total_seconds()

    slow = [dict(stage) for stage in (stage.model_dump(mode="json") for stage in PLAN)]
    slow[SHADOW] |= {"window_s": 1_200.0, "max_duration_s": 3_600.0}
    views = tuple(replace(view, spec=spec) for view, spec in zip(stages(SHADOW), parse_plan(slow), strict=True))
    assert pace(progressing(stage=NOT_READY)) == 2.0
    assert pace(replace(progressing(), stages=views)) == 20.0
    soon = replace(views[SHADOW], deadline=NOW + timedelta(seconds=7))
    assert pace(replace(progressing(), stages=(soon, *views[1:]))) == 7.0


def test_a_stage_that_can_not_be_progressing_is_a_fault() -> None:
    with pytest.raises(ValueError, match="can't be progressing"):
        plan(snapshot("progressing", APPROVAL), NOW)
