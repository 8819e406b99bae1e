"""What people and CI may do to a rollout, and what they are told when they may not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from apps.access import services as access
from apps.access.actors import SYSTEM, Actor
from apps.access.models import Role, User
from apps.audit.models import Event
from apps.audit.transitions import IllegalMove, Stale, move
from apps.fleet import services as fleet
from apps.fleet.models import DesiredDeployment, Node
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.models.models import Alias
from apps.models.services import move_alias
from apps.rollouts import services
from apps.rollouts.models import Approval, Evidence, EvidenceSnapshot, Hold, Phase, Rollout, Stage, Strategy
from apps.rollouts.strategy import dump_plan
from tests.fleet import builders
from tests.rollouts.lab import Lab, SimNode

pytestmark = pytest.mark.django_db

QUICK = {
    "kind": "shadow", "percent": 100, "min_samples": 149, "window_s": 10, "max_duration_s": 20, "ready_s": 60,
    "metrics": [{"name": "similarity", "margin": 0.98}],
}  # fmt: skip
APPROVAL = {"kind": "approval"}
FULL = {"kind": "full", "ready_s": 60}
ENDED = sorted(Rollout.TERMINAL)


def code_of(error: pytest.ExceptionInfo[DomainError]) -> str:
    return error.value.code


@pytest.fixture
def waiting(lab: Lab, start: Callable[..., Rollout]) -> Rollout:
    """A rollout of v2 that waits for its approval."""
    rollout = start(lab.version(2), stages=[QUICK, APPROVAL, FULL])
    return lab.until(rollout, "paused", within_s=60)


def boss_of(make_user: Callable[..., User], lab: Lab, name: str, role: Role = Role.APPROVER) -> Actor:
    return Actor.person(make_user(name, lab.world.team, role))


# ---- the table of moves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", Phase.values)
@pytest.mark.parametrize("to", Phase.values)
def test_every_move_is_made_or_refused_as_the_table_says(waiting_row: Rollout, now: Any, source: str, to: str) -> None:
    Rollout.objects.filter(pk=waiting_row.pk).update(phase=source)
    waiting_row.refresh_from_db()
    revision = waiting_row.revision
    if to in Rollout.TRANSITIONS[Phase(source)]:
        event = move(waiting_row, to, actor=SYSTEM, reason="by table", now=now)
        waiting_row.refresh_from_db()
        assert (waiting_row.phase, waiting_row.revision) == (to, revision + 1)
        assert (event.from_state, event.to_state) == (source, to)
    else:
        with pytest.raises(IllegalMove):
            move(waiting_row, to, actor=SYSTEM, reason="by table", now=now)
        waiting_row.refresh_from_db()
        assert (waiting_row.phase, waiting_row.revision) == (source, revision)
        assert not Event.objects.filter(object_id=str(waiting_row.pk), reason="by table").exists()


@pytest.fixture
def waiting_row(empty_lab: Lab, start: Callable[..., Rollout]) -> Rollout:
    return start(empty_lab.version(1), "first")


def test_an_ended_rollout_has_no_way_out_and_every_other_one_can_end() -> None:
    for phase in Phase:
        reachable, frontier = {phase}, {phase}
        while frontier:
            frontier = {to for source in frontier for to in Rollout.TRANSITIONS[source]} - reachable
            reachable |= frontier
        assert (reachable == {phase}) == (phase in Rollout.TERMINAL)
        assert reachable & Rollout.TERMINAL


# ---- starting -------------------------------------------------------------------------------------------------------


def test_a_rollout_needs_an_operator_a_reason_and_one_plan(
    lab: Lab, start: Callable[..., Rollout], viewer: User, outsider: User
) -> None:
    version = lab.version(2)
    for actor in (Actor.person(viewer), Actor.person(outsider)):
        with pytest.raises(Forbidden):
            start(version, actor=actor)
    with pytest.raises(Forbidden) as error:
        start(version, actor=SYSTEM)
    assert code_of(error) == "person_needed"
    for changes, code in (({"reason": "  "}, "reason_missing"), ({"stages": None}, "bad_plan")):
        with pytest.raises(DomainError) as bad:
            start(version, **changes)
        assert code_of(bad) == code
    assert Rollout.objects.filter(version=version).count() == 0


def test_gates_are_needed_where_something_is_served_and_useless_where_nothing_is(
    empty_lab: Lab, start: Callable[..., Rollout]
) -> None:
    first = empty_lab.version(1)
    with pytest.raises(Conflict) as nothing:
        start(first, "demo")
    assert code_of(nothing) == "nothing_to_compare"
    empty_lab.until(start(first, "first"), "completed", within_s=60)
    with pytest.raises(Conflict) as again:
        start(first, "first")
    assert code_of(again) == "already_serving"
    with pytest.raises(Conflict) as ungated:
        start(empty_lab.version(2), "first")
    assert code_of(ungated) == "gates_needed"


def test_an_alias_moved_by_hand_opens_no_gate(lab: Lab, start: Callable[..., Rollout], lead: Actor) -> None:
    """Else whoever may move it could bring an unseen version everywhere, and nobody else would be asked."""
    unseen = lab.version(2)
    move_alias(model=lab.model, name="champion", version=unseen, actor=lead, reason="because I can", now=lab.now)
    with pytest.raises(Conflict) as ungated:
        start(unseen, "first", actor=lead)
    assert code_of(ungated) == "gates_needed"


def test_a_first_rollout_elsewhere_opens_no_gate(lab: Lab, start: Callable[..., Rollout]) -> None:
    """A pool that serves nothing takes a version without gates; the champion it makes is nobody's proof."""
    unseen = lab.version(2)
    side = fleet.create_pool(team=lab.world.team, slug="side", actor=SYSTEM, auto_accept=True, now=lab.now)
    node, _ = builders.enrol(dataclasses.replace(lab.world, pool=side), "node-4", lab.now)
    lab.nodes.append(SimNode(node.pk, node.name))
    lab.until(start(unseen, "first", pool=side), "completed", within_s=60, traffic=False)
    assert Alias.objects.get(name="champion").version == unseen
    with pytest.raises(Conflict) as ungated:
        start(unseen, "first")
    assert code_of(ungated) == "gates_needed"


def test_a_first_rollout_while_the_others_are_cordoned_opens_no_gate(
    lab: Lab, start: Callable[..., Rollout], requester: Actor
) -> None:
    unseen = lab.version(2)
    serving = list(Node.objects.all())
    for node in serving:
        fleet.cordon_node(node, actor=requester, reason="maintenance", now=lab.now)
    fresh, _ = builders.enrol(lab.world, "node-4", lab.now)
    lab.nodes.append(SimNode(fresh.pk, fresh.name))
    lab.until(start(unseen, "first"), "completed", within_s=60, traffic=False)
    for node in serving:
        fleet.uncordon_node(node, actor=requester, reason="done", now=lab.now)
    with pytest.raises(Conflict) as ungated:
        start(unseen, "first")
    assert code_of(ungated) == "gates_needed"


def test_what_serves_is_replaced_only_after_a_person_said_yes(
    lab: Lab, start: Callable[..., Rollout], requester: Actor, team_admin: User
) -> None:
    """Whoever may write a plan could leave the person out of it; the pool's rule is an admin's to lift."""
    pool, admin = lab.world.pool, Actor.person(team_admin)
    fleet.set_pool_approval(pool, requires_approval=True, actor=admin, reason="production", now=lab.now)
    version, unasked = lab.version(2), [QUICK, FULL]
    shadow = QUICK | {"min_samples": 300}
    canary = {"kind": "canary", "weight": 10} | {key: shadow[key] for key in shadow if key not in ("kind", "percent")}
    too_early = [shadow, APPROVAL, canary, FULL]
    for stages in (unasked, too_early):
        with pytest.raises(Conflict) as refused:
            start(version, stages=stages)
        assert code_of(refused) == "approval_needed"
    with pytest.raises(Forbidden):
        fleet.set_pool_approval(pool, requires_approval=False, actor=requester, reason="in a hurry", now=lab.now)
    fleet.set_pool_approval(pool, requires_approval=False, actor=admin, reason="a test pool", now=lab.now)
    assert start(version, stages=unasked).phase == "pending"


def test_a_node_that_missed_it_may_catch_up_without_gates(
    lab: Lab, waiting: Rollout, start: Callable[..., Rollout], lead: Actor, requester: Actor
) -> None:
    third = Node.objects.get(name="node-3")
    fleet.cordon_node(third, actor=requester, reason="fan", now=lab.now)
    services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    lab.until(waiting, "completed", within_s=60)
    third.refresh_from_db()
    fleet.uncordon_node(third, actor=requester, reason="new fan", now=lab.now)
    follow = start(waiting.version, "first")
    assert list(follow.participants.values_list("node__name", flat=True)) == ["node-3"]
    assert follow.baseline is not None
    assert follow.baseline.number == 1
    lab.until(follow, "completed", within_s=60)
    assert set(DesiredDeployment.objects.values_list("version__number", "role")) == {(2, "baseline")}


def test_one_rollout_at_a_time_for_a_model_on_a_pool(lab: Lab, start: Callable[..., Rollout], waiting: Rollout) -> None:
    with pytest.raises(Conflict) as error:
        start(lab.version(3))
    assert code_of(error) == "rollout_open"
    assert str(waiting) in error.value.sentence


def test_a_newer_request_supersedes_one_that_has_not_begun(lab: Lab, start: Callable[..., Rollout]) -> None:
    older = start(lab.version(2))
    newer = start(lab.version(3))
    older.refresh_from_db()
    assert (older.phase, newer.phase) == ("superseded", "pending")
    assert newer.number > older.number
    assert "v3" in older.decision


def test_a_version_that_is_not_published_or_lacks_lineage_does_not_start(
    lab: Lab, start: Callable[..., Rollout]
) -> None:
    version = lab.version(2)
    type(version).objects.filter(pk=version.pk).update(env_hash="")
    version.refresh_from_db()
    with pytest.raises(Conflict) as error:
        start(version)
    assert code_of(error) == "lineage_incomplete"


def test_no_node_no_rollout(empty_lab: Lab, start: Callable[..., Rollout], requester: Actor) -> None:
    version = empty_lab.version(1)
    empty_lab.step()
    for node in Node.objects.all():
        fleet.cordon_node(node, actor=requester, reason="maintenance", now=empty_lab.now)
    with pytest.raises(Conflict) as error:
        start(version, "first")
    assert code_of(error) == "no_nodes"


# ---- deciding -------------------------------------------------------------------------------------------------------


def test_four_eyes_hold_for_tokens_and_superusers_too(
    lab: Lab, waiting: Rollout, operator: User, make_user: Callable[..., User], start: Callable[..., Rollout]
) -> None:
    access.set_membership(user=operator, team=lab.world.team, role=Role.ADMIN, actor=SYSTEM, now=lab.now)
    for actor in (Actor.person(operator), Actor.token(operator, "ci")):
        with pytest.raises(Forbidden) as error:
            services.approve_rollout(waiting, actor=actor, reason="mine", now=lab.now)
        assert code_of(error) == "four_eyes"
        with pytest.raises(Forbidden):
            services.reject_rollout(waiting, actor=actor, reason="mine", now=lab.now)
    services.abort_rollout(waiting, actor=Actor.person(operator), reason="again", now=lab.now)
    lab.until(waiting, "aborted", within_s=60)
    root = make_user("root", superuser=True)
    theirs = start(lab.version(3), stages=[QUICK, APPROVAL, FULL], actor=Actor.person(root))
    lab.until(theirs, "paused", within_s=60)
    with pytest.raises(Forbidden) as error:
        services.approve_rollout(theirs, actor=Actor.person(root), reason="I may all", now=lab.now)
    assert code_of(error) == "four_eyes"
    assert Approval.objects.count() == 0


def test_who_may_decide(lab: Lab, waiting: Rollout, viewer: User, outsider: User, lead: Actor) -> None:
    for user in (viewer, outsider):
        with pytest.raises(Forbidden):
            services.approve_rollout(waiting, actor=Actor.person(user), reason="yes", now=lab.now)
    with pytest.raises(Forbidden):
        services.approve_rollout(waiting, actor=SYSTEM, reason="yes", now=lab.now)
    with pytest.raises(DomainError) as error:
        services.approve_rollout(waiting, actor=lead, reason=" ", now=lab.now)
    assert code_of(error) == "reason_missing"


def test_a_stale_revision_is_refused_and_changes_nothing(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    for command in (services.approve_rollout, services.reject_rollout, services.abort_rollout, services.resume_rollout):
        with pytest.raises(Stale) as error:
            command(waiting, actor=lead, reason="x", now=lab.now, expected_revision=waiting.revision - 1)
        assert (code_of(error), error.value.status) == ("stale_revision", 409)
    assert Approval.objects.count() == 0


def test_the_first_decision_wins(lab: Lab, waiting: Rollout, lead: Actor, make_user: Callable[..., User]) -> None:
    other = boss_of(make_user, lab, "second")
    services.reject_rollout(waiting, actor=lead, reason="not now", now=lab.now)
    with pytest.raises(Conflict) as error:
        services.approve_rollout(waiting, actor=other, reason="but yes", now=lab.now)
    assert code_of(error) == "already_decided"
    lab.until(waiting, "rolled_back", within_s=60)
    assert waiting.decision == "approver rejected it («not now»): v2 was rolled back in approval."
    assert Hold.objects.filter(rollout=waiting, lifted_at=None).count() == 1


def test_two_approvers_are_two_people(
    lab: Lab, start: Callable[..., Rollout], lead: Actor, make_user: Callable[..., User]
) -> None:
    rollout = start(lab.version(2), stages=[QUICK, {"kind": "approval", "approvers": 2}, FULL])
    lab.until(rollout, "paused", within_s=60)
    services.approve_rollout(rollout, actor=lead, reason="clean", now=lab.now)
    lab.run(10)
    rollout.refresh_from_db()
    assert rollout.phase == "paused"
    with pytest.raises(Conflict):
        services.approve_rollout(rollout, actor=lead, reason="clean, twice", now=lab.now)
    services.approve_rollout(rollout, actor=boss_of(make_user, lab, "second"), reason="too", now=lab.now)
    lab.until(rollout, "completed", within_s=60)


def test_an_approval_stage_may_demand_an_admin(
    lab: Lab, start: Callable[..., Rollout], lead: Actor, team_admin: User
) -> None:
    rollout = start(lab.version(2), stages=[QUICK, {"kind": "approval", "roles": ["admin"]}, FULL])
    lab.until(rollout, "paused", within_s=60)
    with pytest.raises(Forbidden):
        services.approve_rollout(rollout, actor=lead, reason="clean", now=lab.now)
    services.approve_rollout(rollout, actor=Actor.person(team_admin), reason="clean", now=lab.now)


def test_evidence_that_worsened_voids_the_snapshot(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    Evidence.objects.filter(stage__rollout=waiting, metric="similarity").update(verdict="inconclusive")
    with pytest.raises(Conflict) as error:
        services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    assert code_of(error) == "evidence_worsened"
    services.reject_rollout(waiting, actor=lead, reason="then not", now=lab.now)


def test_an_edited_plan_voids_the_snapshot(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    Rollout.objects.filter(pk=waiting.pk).update(plan_sha256="0" * 64)
    with pytest.raises(Conflict) as error:
        services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    assert code_of(error) == "not_waiting"


def test_an_approval_lapses_after_its_time_into_a_rollback(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    lab.now = waiting.phase_deadline
    with pytest.raises(Conflict) as error:
        services.approve_rollout(waiting, actor=lead, reason="late", now=lab.now)
    assert code_of(error) == "approval_lapsed"
    lab.until(waiting, "rolled_back", within_s=60)
    assert waiting.decision.startswith("Nobody decided before the approval lapsed")


def test_the_life_of_an_approval_is_a_setting(lab: Lab, settings: Any, start: Callable[..., Rollout]) -> None:
    settings.FARRIER = settings.FARRIER.model_copy(update={"approval_life_s": 60.0})
    rollout = lab.until(start(lab.version(2), stages=[QUICK, APPROVAL, FULL]), "paused", within_s=60)
    assert rollout.phase_deadline - lab.now <= timedelta(seconds=60)


def test_the_snapshot_is_what_was_seen_and_stays(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    snapshot = EvidenceSnapshot.objects.get(rollout=waiting)
    lab.run(20)
    approval = services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    assert approval.snapshot == snapshot
    assert snapshot.content["digest"] == waiting.artifact.digest
    assert snapshot.plan_sha256 == waiting.plan_sha256
    live = Evidence.objects.get(stage__rollout=waiting, metric="similarity")
    frozen = next(row for row in snapshot.content["findings"] if row["metric"] == "similarity")
    assert live.samples > frozen["samples"]


def test_an_undecided_stage_is_settled_by_a_person(lab: Lab, start: Callable[..., Rollout], lead: Actor) -> None:
    rollout = start(lab.version(2), stages=[QUICK | {"min_samples": 100_000}, FULL])
    lab.until(rollout, "paused", within_s=120)
    assert rollout.pause_reason == "inconclusive"
    services.approve_rollout(rollout, actor=lead, reason="I compared them by hand", now=lab.now)
    lab.until(rollout, "completed", within_s=60)


def test_resuming_an_undecided_stage_gives_it_another_window(
    lab: Lab, start: Callable[..., Rollout], requester: Actor
) -> None:
    rollout = start(lab.version(2), stages=[QUICK | {"min_samples": 100_000}, FULL])
    lab.until(rollout, "paused", within_s=120)
    services.resume_rollout(rollout, actor=requester, reason="more traffic at noon", now=lab.now)
    lab.run(6)
    rollout.refresh_from_db()
    assert rollout.phase == "progressing"
    lab.until(rollout, "paused", within_s=60)


# ---- pause, resume, abort -------------------------------------------------------------------------------------------


def test_a_pause_stops_promotion_and_not_rollback(lab: Lab, start: Callable[..., Rollout], requester: Actor) -> None:
    rollout = start(lab.version(2), stages=[QUICK, FULL])
    lab.until(rollout, "progressing", within_s=30)
    services.pause_rollout(rollout, actor=requester, reason="lunch", now=lab.now)
    lab.run(40)
    rollout.refresh_from_db()
    assert (rollout.phase, rollout.pause_reason) == ("paused", "operator")
    with pytest.raises(Conflict):
        services.pause_rollout(rollout, actor=requester, reason="more lunch", now=lab.now)
    lab.behaviour[rollout.artifact.digest].similarity = 0.5
    lab.until(rollout, "rolled_back", within_s=60)


def test_resume_goes_on_where_it_was(lab: Lab, start: Callable[..., Rollout], requester: Actor) -> None:
    rollout = start(lab.version(2), stages=[QUICK, FULL])
    lab.until(rollout, "progressing", within_s=30)
    with pytest.raises(Conflict) as error:
        services.resume_rollout(rollout, actor=requester, reason="go", now=lab.now)
    assert code_of(error) == "not_paused"
    services.pause_rollout(rollout, actor=requester, reason="lunch", now=lab.now)
    lab.run(20)
    services.resume_rollout(rollout, actor=requester, reason="back", now=lab.now)
    lab.until(rollout, "completed", within_s=60)


def test_what_waits_for_approval_is_not_resumed_past_it(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    with pytest.raises(Conflict) as error:
        services.resume_rollout(waiting, actor=lead, reason="go", now=lab.now)
    assert code_of(error) == "approval_needed"


def test_an_abort_returns_every_node_and_places_no_hold(
    lab: Lab, waiting: Rollout, requester: Actor, start: Callable[..., Rollout]
) -> None:
    services.abort_rollout(waiting, actor=requester, reason="wrong version", now=lab.now)
    lab.until(waiting, "aborted", within_s=60)
    assert waiting.decision == "operator aborted it: wrong version"
    assert set(DesiredDeployment.objects.values_list("version__number", "weight")) == {(1, 100)}
    assert not Hold.objects.exists()
    assert start(waiting.version)


@pytest.mark.parametrize("phase", ENDED)
def test_nothing_can_be_done_to_what_has_ended(waiting_row: Rollout, lead: Actor, now: Any, phase: str) -> None:
    Rollout.objects.filter(pk=waiting_row.pk).update(phase=phase)
    commands = (services.approve_rollout, services.reject_rollout, services.pause_rollout, services.resume_rollout)
    for command in (*commands, services.abort_rollout):
        with pytest.raises(Conflict):
            command(waiting_row, actor=lead, reason="x", now=now)


# ---- holds and strategies -------------------------------------------------------------------------------------------


def test_a_hold_by_hand_stops_an_open_rollout_of_that_digest(
    lab: Lab, start: Callable[..., Rollout], requester: Actor, lead: Actor
) -> None:
    rollout = start(lab.version(2), stages=[QUICK, FULL])
    hold = services.place_hold(version=rollout.version, actor=requester, reason="leaks a name", now=lab.now)
    with pytest.raises(Conflict) as error:
        services.place_hold(version=rollout.version, actor=requester, reason="again", now=lab.now)
    assert code_of(error) == "already_held"
    lab.until(rollout, "paused", within_s=90)
    assert "leaks a name" in Event.objects.filter(object_id=str(rollout.pk), verb="rollout.paused").get().reason
    services.lift_hold(hold, actor=lead, reason="it did not", now=lab.now)
    with pytest.raises(Conflict):
        services.lift_hold(hold, actor=lead, reason="twice", now=lab.now)
    lab.until(rollout, "completed", within_s=60)


def test_strategies_are_checked_when_written_and_the_defaults_are_made_once(lab: Lab, requester: Actor) -> None:
    team = lab.world.team
    assert {each.slug for each in services.ensure_default_strategies(team)} == {
        "standard", "demo", "digits-demo", "first",
    }  # fmt: skip
    assert Strategy.objects.filter(team=team).count() == 4
    fields = {"team": team, "actor": requester, "now": lab.now}
    for slug, stages, code in (
        ("hasty", [QUICK | {"min_samples": 10}, FULL], "too_few_samples"),
        ("Not A Slug", [FULL], "bad_slug"),
        ("first", [FULL], "strategy_exists"),
    ):
        with pytest.raises(DomainError) as error:
            services.create_strategy(slug=slug, stages=stages, **fields)
        assert code_of(error) == code
    made = services.create_strategy(slug="quick", stages=[QUICK, APPROVAL, FULL], **fields)
    assert made.stages[1]["expires_s"] == 14_400.0


def test_a_started_rollout_keeps_its_plan_when_the_strategy_changes(lab: Lab, start: Callable[..., Rollout]) -> None:
    rollout = start(lab.version(2), "demo")
    Strategy.objects.filter(slug="demo").update(stages=dump_plan(()))
    lab.run(4)
    rollout.refresh_from_db()
    assert len(rollout.plan) == Stage.objects.filter(rollout=rollout).count() == 5
    assert rollout.phase == "progressing"
