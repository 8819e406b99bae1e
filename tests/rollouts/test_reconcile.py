"""The tick under adversity: leases, fences, races, sick nodes, time that jumps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from apps.access.actors import Actor
from apps.access.models import Role, User
from apps.audit.models import Event
from apps.audit.transitions import Stale
from apps.fleet import services as fleet
from apps.fleet.models import Node
from apps.lib.errors import Conflict, DomainError
from apps.rollouts import effects, reconcile, services
from apps.rollouts.models import Approval, Hold, Participant, Rollout
from apps.rollouts.planner import plan
from apps.rollouts.snapshot import load, view
from protocol.messages import ConditionReport
from tests.fleet import builders
from tests.rollouts.lab import Lab, SimNode
from tests.rollouts.test_commands import APPROVAL, FULL, QUICK, waiting

pytestmark = pytest.mark.django_db
__all__ = ["waiting"]


@pytest.fixture
def shadowing(lab: Lab, start: Callable[..., Rollout]) -> Rollout:
    """A rollout of v2 in a shadow stage that no evidence decides for long."""
    rollout = start(lab.version(2), stages=[QUICK | {"min_samples": 100_000, "max_duration_s": 3_600}, APPROVAL, FULL])
    lab.until(rollout, "progressing", within_s=30)
    lab.run(10)
    rollout.refresh_from_db()
    return rollout


# ---- one writer at a time -------------------------------------------------------------------------------------------


def test_a_claimed_rollout_is_not_claimed_again_until_its_lease_ends(shadowing: Rollout, lab: Lab) -> None:
    lab.now += timedelta(seconds=30)
    first = reconcile._claim(lab.now, shadowing.pk, 1)
    assert len(first) == 1
    assert reconcile._claim(lab.now, shadowing.pk, 1) == []
    assert not reconcile.reconcile(shadowing.pk, lab.now)
    later = lab.now + effects.lease()
    second = reconcile._claim(later, shadowing.pk, 1)
    assert second[0][1] == first[0][1] + 1


def test_a_worker_whose_lease_has_passed_on_can_not_write(shadowing: Rollout, lab: Lab) -> None:
    lab.now += timedelta(seconds=30)
    ((_, epoch, _),) = reconcile._claim(lab.now, shadowing.pk, 1)
    slow = load(shadowing.pk, epoch)
    assert slow is not None
    lab.now += effects.lease()
    assert reconcile._claim(lab.now, shadowing.pk, 1)
    before = _everything(shadowing)
    with pytest.raises(Stale):
        effects.apply(slow, plan(view(slow, lab.now), lab.now), None, lab.now)
    assert load(shadowing.pk, epoch) is None
    assert _everything(shadowing) == before


def test_a_worker_that_a_person_overtook_can_not_write(shadowing: Rollout, lab: Lab, requester: Actor) -> None:
    lab.now += timedelta(seconds=30)
    ((_, epoch, _),) = reconcile._claim(lab.now, shadowing.pk, 1)
    slow = load(shadowing.pk, epoch)
    assert slow is not None
    services.abort_rollout(shadowing, actor=requester, reason="stop", now=lab.now)
    with pytest.raises(Stale):
        effects.apply(slow, plan(view(slow, lab.now), lab.now), None, lab.now)
    lab.now += effects.lease()
    lab.until(shadowing, "aborted", within_s=60)


def test_a_command_while_a_worker_has_the_rollout_at_hand_stays_due(waiting: Rollout, lab: Lab, lead: Actor) -> None:
    ((pk, epoch, due_at),) = reconcile._claim(lab.now, waiting.pk, 1)
    lab.now += timedelta(seconds=1)
    services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    reconcile._release(pk, epoch, due_at, lab.now + timedelta(hours=1))
    waiting.refresh_from_db()
    assert waiting.due_at == lab.now
    assert waiting.lease_until is None


def test_repeated_and_reordered_ticks_change_nothing_more(shadowing: Rollout, lab: Lab) -> None:
    reconcile.reconcile(shadowing.pk, lab.now)
    before = _everything(shadowing)
    for seconds in (0, -5, 0, -60):
        reconcile.reconcile(shadowing.pk, lab.now + timedelta(seconds=seconds))
        reconcile.tick(lab.now + timedelta(seconds=seconds))
    assert _everything(shadowing) == before


def test_a_fault_in_one_rollout_keeps_no_other_waiting(
    lab: Lab, shadowing: Rollout, caplog: pytest.LogCaptureFixture
) -> None:
    """A plan that can't be read any more (written by a newer release, say) is that rollout's trouble alone."""
    Rollout.objects.filter(pk=shadowing.pk).update(plan=[{"kind": "blue-green"}])
    lab.now += timedelta(minutes=5)
    assert reconcile.tick(lab.now) == 1
    assert "could not be reconciled" in caplog.text
    with pytest.raises(DomainError):
        reconcile.reconcile(shadowing.pk, lab.now)
    shadowing.refresh_from_db()
    assert shadowing.lease_until is None
    assert shadowing.due_at == lab.now + reconcile.RETRY


def _everything(rollout: Rollout) -> tuple[Any, ...]:
    rollout.refresh_from_db()
    return (
        rollout.phase,
        rollout.revision,
        rollout.stage_index,
        list(rollout.stages.order_by("index").values_list("state", "attempt", "ready_at", "deadline")),
        list(Node.objects.order_by("name").values_list("desired_generation", flat=True)),
        Event.objects.filter(object_id=str(rollout.pk)).count(),
    )  # fmt: skip


# ---- nodes ----------------------------------------------------------------------------------------------------------


def test_a_hot_node_is_left_out_on_record_and_its_pairs_do_not_count(lab: Lab, start: Callable[..., Rollout]) -> None:
    """Two of three nodes compare well, the hot one badly: a hardware fault is not a model regression."""
    lab.nodes[2].conditions = (ConditionReport(type="GpuHot", status="true", reason="87 °C"),)
    version = lab.version(2)
    lab.step()
    rollout = start(version, stages=[QUICK, APPROVAL, FULL])
    lab.until(rollout, "progressing", within_s=30)
    lab.run(4)
    hot = Participant.objects.get(rollout=rollout, node__name="node-3")
    assert hot.excluded_reason == "It reports GpuHot: 87 °C."
    assert Event.objects.filter(object_id=str(rollout.pk), verb="rollout.node_excluded").count() == 1
    lab.until(rollout, "paused", within_s=60)
    evidence = rollout.stages.get(index=0).evidence.get(metric="similarity")
    assert {row["name"] for row in evidence.detail["by_node"]} == {"node-1", "node-2"}


def test_a_lost_node_holds_up_nobody_and_catches_up(
    lab: Lab, waiting: Rollout, lead: Actor, start: Callable[..., Rollout]
) -> None:
    lab.nodes[2].offline = True
    lab.run(60)  # longer than three polls
    services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    lab.until(waiting, "completed", within_s=60)
    assert waiting.decision == "v2 serves on 2 nodes of pool default."
    lab.nodes[2].offline = False
    lab.run(8)
    assert {each.digest for each in lab.nodes[2].deployments} == {waiting.artifact.digest}


def test_a_rollback_is_complete_only_when_every_reachable_node_says_so(lab: Lab, shadowing: Rollout) -> None:
    lab.behaviour[shadowing.artifact.digest].similarity = 0.9
    lab.nodes[0].offline = True  # it has the candidate, and is not overdue for another half minute
    lab.until(shadowing, "rolling_back", within_s=10)
    lab.run(10)
    shadowing.refresh_from_db()
    assert shadowing.phase == "rolling_back"
    lab.nodes[0].offline = False
    lab.until(shadowing, "rolled_back", within_s=10)


def test_a_version_that_no_node_can_load_goes_back_with_the_nodes_reason(
    lab: Lab, start: Callable[..., Rollout]
) -> None:
    rollout = start(lab.version(2, loads=False), stages=[QUICK, APPROVAL, FULL])
    lab.until(rollout, "rolled_back", within_s=60)
    assert "the graph names an op that this engine lacks" in rollout.decision
    assert Hold.objects.filter(rollout=rollout).exists()


def test_a_node_that_joins_during_a_rollout_gets_the_version_in_the_end(
    lab: Lab, waiting: Rollout, lead: Actor, now: Any
) -> None:
    node, _ = builders.enrol(lab.world, "node-4", now)
    lab.nodes.append(SimNode(node.pk, node.name))
    lab.run(4)
    services.approve_rollout(waiting, actor=lead, reason="clean", now=lab.now)
    lab.until(waiting, "completed", within_s=60)
    assert waiting.participants.count() == 4
    assert [each.weight for each in lab.nodes[3].deployments] == [100]


def test_a_pool_without_a_node_that_can_take_work_ends_the_rollout_by_itself(
    empty_lab: Lab, start: Callable[..., Rollout], requester: Actor
) -> None:
    version = empty_lab.version(1)
    empty_lab.step()
    rollout = start(version, "first")
    for node in Node.objects.all():
        fleet.cordon_node(node, actor=requester, reason="maintenance", now=empty_lab.now)
    empty_lab.run(20)
    rollout.refresh_from_db()
    assert rollout.phase == "pending"
    empty_lab.now = rollout.phase_deadline
    empty_lab.until(rollout, "rolled_back", within_s=60)
    assert rollout.decision == "No node of pool default takes work: v1 was rolled back before its first stage."


# ---- evidence and time ----------------------------------------------------------------------------------------------


def test_no_traffic_never_passes_and_asks_a_person_in_the_end(lab: Lab, start: Callable[..., Rollout]) -> None:
    rollout = start(lab.version(2), stages=[QUICK, APPROVAL, FULL])
    lab.until(rollout, "paused", within_s=120, traffic=False)
    assert rollout.pause_reason == "inconclusive"
    extended = Event.objects.filter(object_id=str(rollout.pk), verb="rollout.window_extended")
    assert extended.count() >= 1
    assert "0 of 149 pairs" in extended[0].reason
    lab.now = rollout.phase_deadline
    lab.until(rollout, "rolled_back", within_s=60, traffic=False)


def test_traffic_that_comes_back_decides_without_a_person(lab: Lab, start: Callable[..., Rollout]) -> None:
    rollout = start(lab.version(2), stages=[QUICK, APPROVAL, FULL])
    lab.until(rollout, "paused", within_s=120, traffic=False)
    assert rollout.pause_reason == "inconclusive"
    lab.run(20)
    rollout.refresh_from_db()
    assert (rollout.phase, rollout.pause_reason) == ("paused", "approval")


def test_a_version_that_goes_bad_while_people_are_asked_rolls_back(lab: Lab, waiting: Rollout) -> None:
    lab.run(20)
    lab.behaviour[waiting.artifact.digest].similarity = 0.9
    lab.until(waiting, "rolled_back", within_s=60)
    assert waiting.decision.startswith("Output similarity is")


def test_a_control_plane_that_was_away_for_a_day_ends_what_it_finds(lab: Lab, shadowing: Rollout) -> None:
    lab.now += timedelta(hours=25)
    lab.until(shadowing, "paused", "rolled_back", "rolling_back", within_s=30)
    lab.now += timedelta(hours=5)
    lab.until(shadowing, "rolled_back", within_s=60)


# ---- races ----------------------------------------------------------------------------------------------------------


def _race(*jobs: Callable[[], object]) -> list[BaseException | object]:
    """Run `jobs` at the same moment, each on its own connection; return what each gave or raised."""
    barrier = threading.Barrier(len(jobs))
    results: list[Any] = [None] * len(jobs)

    def run(index: int, job: Callable[[], object]) -> None:
        barrier.wait()
        try:
            results[index] = job()
        except DomainError as refused:
            results[index] = refused
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index, job)) for index, job in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    return results


@pytest.mark.django_db(transaction=True)
def test_of_two_people_at_once_one_decides(
    lab: Lab, waiting: Rollout, lead: Actor, make_user: Callable[..., User]
) -> None:
    second = Actor.person(make_user("second", lab.world.team, Role.APPROVER))
    results = _race(
        lambda: services.approve_rollout(waiting, actor=lead, reason="yes", now=lab.now),
        lambda: services.reject_rollout(waiting, actor=second, reason="no", now=lab.now),
    )
    refused = [result for result in results if isinstance(result, Conflict)]
    assert [each.code for each in refused] == ["already_decided"]
    decision = Approval.objects.get()
    lab.until(waiting, "completed" if decision.approve else "rolled_back", within_s=60)


@pytest.mark.django_db(transaction=True)
def test_ticks_that_race_promote_once(lab: Lab, waiting: Rollout, lead: Actor) -> None:
    services.approve_rollout(waiting, actor=lead, reason="yes", now=lab.now)
    _race(*[lambda: reconcile.tick(lab.now)] * 4, *[lambda: reconcile.reconcile(waiting.pk, lab.now)] * 4)
    waiting.refresh_from_db()
    assert waiting.phase == "promoting"
    started = Event.objects.filter(object_id=str(waiting.pk), verb="rollout.stage_started")
    assert [event.data["stage"] for event in started.order_by("id")] == [0, 1, 2]


@pytest.mark.django_db(transaction=True)
def test_an_abort_beats_the_promotion_that_races_it(lab: Lab, waiting: Rollout, lead: Actor, requester: Actor) -> None:
    services.approve_rollout(waiting, actor=lead, reason="yes", now=lab.now)
    results = _race(
        lambda: reconcile.tick(lab.now),
        lambda: services.abort_rollout(waiting, actor=requester, reason="stop", now=lab.now),
        lambda: reconcile.reconcile(waiting.pk, lab.now),
    )
    assert not any(isinstance(result, BaseException) for result in results)
    lab.until(waiting, "aborted", within_s=60)
    assert all(each.weight == 100 and each.version == 1 for node in lab.nodes for each in node.deployments)


@pytest.mark.django_db(transaction=True)
def test_of_two_starts_at_once_one_is_open(lab: Lab, start: Callable[..., Rollout]) -> None:
    version = lab.version(2)
    results = _race(*[lambda: start(version)] * 3)
    assert sum(isinstance(result, Rollout) for result in results) == 1
    assert {each.code for each in results if isinstance(each, Conflict)} == {"rollout_open"}
    assert Rollout.objects.exclude(phase__in=Rollout.TERMINAL).count() == 1


def test_an_unknown_rollout_is_nothing_to_do(db: None, now: Any) -> None:
    assert not reconcile.reconcile(uuid4(), now)
