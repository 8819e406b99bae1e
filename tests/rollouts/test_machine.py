"""Anything in any order: a rollout under commands, lost and hot nodes, jumps in time, doubled and late workers.

Whatever happens: no stage is promoted twice, none after an approval stage without its approval, an abort stands, what
goes back never goes on, and every rollout ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.db import transaction
from hypothesis import HealthCheck, event, settings
from hypothesis import Phase as HPhase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from apps.access.actors import Actor
from apps.access.models import Role, User
from apps.audit.models import Event
from apps.audit.transitions import Stale
from apps.fleet import services as fleet
from apps.fleet.models import DesiredDeployment, Node, NodePhase
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.models.models import ModelVersion
from apps.rollouts import effects, evidence, reconcile, services
from apps.rollouts.models import Approval, Hold, Phase, Rollout
from apps.rollouts.planner import judged_stage, plan
from apps.rollouts.snapshot import Loaded, load, view
from protocol.messages import ConditionReport
from tests.rollouts.lab import Behaviour, Lab
from tests.rollouts.test_commands import APPROVAL, FULL, QUICK

SHADOW = QUICK | {"min_samples": 190}
CANARY = SHADOW | {"kind": "canary", "weight": 50, "mirror_percent": 100}
del CANARY["percent"]
PLANS = (
    [SHADOW, APPROVAL, FULL],
    [SHADOW, CANARY, {"kind": "approval", "approvers": 2}, FULL],
    [CANARY, FULL],
)
BEHAVIOURS = (Behaviour(), Behaviour(), Behaviour(similarity=0.9), Behaviour(error_rate=0.3), Behaviour(loads=False))
BACKWARD = ("rolling_back", "rolled_back", "aborting", "aborted")
# shrinking replays a failure hundreds of times at a second each: ask for it with the profile «nightly»
settings.register_profile(
    "rollouts", max_examples=10, stateful_step_count=20, phases=[HPhase.explicit, HPhase.generate]
)
settings.register_profile("nightly", max_examples=500, stateful_step_count=100)


class Rollouts(RuleBasedStateMachine):
    """`lab` and `people` are made once; every run works on a copy, in a savepoint that is rolled back."""

    lab_template: ClassVar[Lab]
    versions: ClassVar[list[ModelVersion]]
    requester: ClassVar[Actor]
    approvers: ClassVar[list[Actor]]

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.savepoint()
        self.lab = copy.copy(self.lab_template)
        self.lab.nodes = copy.deepcopy(self.lab_template.nodes)
        self.lab.behaviour = dict(self.lab_template.behaviour)
        self.lab.random.seed(7)
        self.late: Loaded | None = None  # what a worker that lost its lease still has in its hands
        self.aborted: set[Any] = set()
        self.revisions: dict[Any, int] = {}

    def teardown(self) -> None:
        try:
            self._all_end()
        finally:
            transaction.savepoint_rollback(self.savepoint)

    # ---- what may happen --------------------------------------------------------------------------------------------

    @initialize(plan_index=st.integers(0, 2), good=st.booleans())
    def one_is_started(self, plan_index: int, good: bool) -> None:
        self.start(0, plan_index, 0 if good else 2)

    @rule(version=st.integers(0, 1), plan_index=st.integers(0, 2), behaviour=st.integers(0, len(BEHAVIOURS) - 1))
    def start(self, version: int, plan_index: int, behaviour: int) -> None:
        chosen = self.versions[version]
        artifact = chosen.artifacts.get()
        held = Hold.objects.filter(digest=artifact.digest, lifted_at=None).exists()
        self.lab.behaviour[artifact.digest] = BEHAVIOURS[behaviour]
        try:
            services.start_rollout(
                model=chosen.model,
                version=chosen,
                pool=self.lab.world.pool,
                actor=self.requester,
                reason="by machine",
                now=self.lab.now,
                stages=PLANS[plan_index],
            )
        except Conflict as refusal:
            refused = refusal.code
        else:
            refused = ""
        assert (refused == "held") == held, refused

    @rule(steps=st.sampled_from([1, 1, 2, 4]), traffic=st.booleans())
    def time_passes(self, steps: int, traffic: bool) -> None:
        for _ in range(steps):
            self.lab.step(traffic=traffic)

    @rule(steps=st.integers(2, 6))
    def work_goes_on(self, steps: int) -> None:
        for _ in range(steps):
            self.lab.step()

    @rule(hours=st.sampled_from([0.01, 0.5, 5, 25]))
    def time_jumps(self, hours: float) -> None:
        self.lab.now += timedelta(hours=hours)

    @rule(offsets=st.lists(st.integers(-90, 0), min_size=1, max_size=3))
    def ticks_come_doubled_and_late(self, offsets: list[int]) -> None:
        for offset in offsets:
            reconcile.tick(self.lab.now + timedelta(seconds=offset))

    @rule(which=st.integers(0, 2), offline=st.booleans())
    def a_node_is_lost_or_found(self, which: int, offline: bool) -> None:
        self.lab.nodes[which].offline = offline

    @rule(which=st.integers(0, 2), hot=st.booleans())
    def a_node_is_hot_or_cool(self, which: int, hot: bool) -> None:
        condition = ConditionReport(type="GpuHot", status="true", reason="91 °C")
        self.lab.nodes[which].conditions = (condition,) if hot else ()

    @rule(which=st.integers(0, 2))
    def a_node_is_cordoned_or_returned(self, which: int) -> None:
        node = Node.objects.get(pk=self.lab.nodes[which].id)
        move = fleet.uncordon_node if node.phase == NodePhase.CORDONED else fleet.cordon_node
        move(node, actor=self.requester, reason="by machine", now=self.lab.now)

    @rule(who=st.integers(0, 2), approve=st.booleans(), stale=st.booleans())
    def somebody_decides(self, who: int, approve: bool, stale: bool) -> None:
        rollout = self._newest()
        actor = [*self.approvers, self.requester][who]
        command = services.approve_rollout if approve else services.reject_rollout
        revision = rollout.revision - 1 if stale else rollout.revision
        try:
            command(rollout, actor=actor, reason="by machine", now=self.lab.now, expected_revision=revision)
        except (Conflict, Forbidden):
            return
        assert not stale
        assert actor is not self.requester

    @rule(name=st.sampled_from(["pause", "resume"]))
    def somebody_pauses_or_resumes(self, name: str) -> None:
        command = services.pause_rollout if name == "pause" else services.resume_rollout
        try:
            command(self._newest(), actor=self.requester, reason="by machine", now=self.lab.now)
        except DomainError:
            return

    @rule()
    def somebody_aborts(self) -> None:
        rollout = self._newest()
        ended = rollout.phase in Rollout.TERMINAL or rollout.phase == Phase.ABORTING
        try:
            services.abort_rollout(rollout, actor=self.requester, reason="by machine", now=self.lab.now)
        except Conflict:
            assert ended
            return
        assert not ended
        self.aborted.add(rollout.pk)

    @rule()
    def a_hold_is_lifted(self) -> None:
        for hold in Hold.objects.filter(lifted_at=None):
            services.lift_hold(hold, actor=self.approvers[0], reason="by machine", now=self.lab.now)

    @precondition(lambda self: self.late is None)
    @rule()
    def a_worker_claims_and_falls_asleep(self) -> None:
        for rollout_id, epoch, _ in reconcile._claim(self.lab.now, self._newest().pk, 1):
            self.late = load(rollout_id, epoch)
            self.lab.now += effects.lease()

    @precondition(lambda self: self.late is not None)
    @rule()
    def the_worker_wakes_and_writes_what_it_decided(self) -> None:
        loaded, self.late = self.late, None
        assert loaded is not None
        stands = Rollout.objects.filter(
            pk=loaded.rollout.pk, lease_epoch=loaded.epoch, revision=loaded.rollout.revision
        ).exists()
        if loaded.rollout.phase in Rollout.TERMINAL:
            return
        try:
            effects.apply(loaded, plan(view(loaded, self.lab.now), self.lab.now), self._judged(loaded), self.lab.now)
        except Stale:
            assert not stands
        else:
            assert stands

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def no_stage_is_promoted_twice_and_none_is_skipped(self) -> None:
        for rollout in Rollout.objects.all():
            started = [row.data["stage"] for row in self._events(rollout, "rollout.stage_started")]
            assert started == list(range(len(started))), f"{rollout}: {started}"
            if rollout.phase == Phase.COMPLETED:
                assert len(started) == len(rollout.plan)

    @invariant()
    def nothing_passes_an_approval_without_it(self) -> None:
        for rollout in Rollout.objects.all():
            started = {row.data["stage"] for row in self._events(rollout, "rollout.stage_started")}
            for index, stage in enumerate(rollout.plan):
                if stage["kind"] != "approval" or index + 1 not in started:
                    continue
                said = Approval.objects.filter(rollout=rollout, stage__index=index)
                assert said.filter(approve=True).values("user").distinct().count() >= stage["approvers"]
                assert not said.filter(approve=False).exists()
                assert not said.filter(user=rollout.requested_by).exists()

    @invariant()
    def what_goes_back_never_goes_on_and_an_abort_stands(self) -> None:
        for rollout in Rollout.objects.all():
            states = [row.to_state for row in self._events(rollout) if row.to_state]
            backward = next((index for index, state in enumerate(states) if state in BACKWARD), len(states))
            assert all(state in BACKWARD for state in states[backward:]), states
            if rollout.pk in self.aborted:
                assert rollout.phase in (Phase.ABORTING, Phase.ABORTED)

    @invariant()
    def revisions_only_rise(self) -> None:
        for rollout in Rollout.objects.all():
            assert rollout.revision >= self.revisions.get(rollout.pk, 0)
            self.revisions[rollout.pk] = rollout.revision

    @invariant()
    def every_gateway_shares_out_all_its_requests(self) -> None:
        for node in Node.objects.all():
            weights = list(DesiredDeployment.objects.filter(node=node).values_list("weight", flat=True))
            assert not weights or sum(weights) == 100

    @invariant()
    def who_is_back_serves_the_old_version_alone(self) -> None:
        """At the moment a rollback completes, no node that answers has the candidate."""
        newest = Rollout.objects.order_by("-number").first()
        if newest is None or newest.phase not in ("rolled_back", "aborted") or newest.finished_at != self.lab.now:
            return
        for node in self.lab.nodes:
            heard = Node.objects.get(pk=node.id).last_seen_at
            if heard == self.lab.now:
                assert newest.artifact.digest not in {each.digest for each in node.deployments}

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _newest(self) -> Rollout:
        newest = Rollout.objects.order_by("-number").first()
        assert newest is not None
        return newest

    def _events(self, rollout: Rollout, verb: str | None = None) -> list[Event]:
        rows = Event.objects.filter(object_type="rollouts.rollout", object_id=str(rollout.pk)).order_by("id")
        return list(rows.filter(verb=verb) if verb else rows)

    def _judged(self, loaded: Loaded) -> effects.Judged | None:
        stage = judged_stage(view(loaded, self.lab.now))
        if stage is None or stage.ready_at is None or loaded.rollout.phase not in ("progressing", "paused"):
            return None
        row = loaded.stages[stage.index]
        return effects.Judged(row, evidence.judge(loaded, row, self.lab.now))

    def _all_end(self) -> None:
        """Mend the nodes, decide nothing: every rollout must come to an end by itself."""
        for node in self.lab.nodes:
            node.offline, node.conditions = False, ()
        for row in Node.objects.filter(phase=NodePhase.CORDONED):
            fleet.uncordon_node(row, actor=self.requester, reason="by machine", now=self.lab.now)
        for _ in range(40):
            self.lab.now += effects.lease()
            self.lab.run(6)
            left = Rollout.objects.exclude(phase__in=Rollout.TERMINAL).first()
            if left is None:
                return self._tell_statistics()
            if left.phase == Phase.PAUSED:
                self.lab.now = max(self.lab.now, left.phase_deadline)
        return pytest.fail(f"{left} never ended: it is {left.phase} ({left.pause_reason}), {left.decision}")

    def _tell_statistics(self) -> None:
        """For --hypothesis-show-statistics: what the runs came to."""
        for rollout in Rollout.objects.filter(version__in=self.versions):
            event(f"{rollout.phase} in {rollout.plan[rollout.stage_index]['kind']}")


@pytest.mark.timeout(1_800)
@pytest.mark.django_db
def test_whatever_happens_the_rules_hold(
    lab: Lab, requester: Actor, lead: Actor, make_user: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.rollouts.lab.REQUESTS_A_STEP", 40)
    Rollouts.versions = [lab.version(2), lab.version(3)]
    Rollouts.lab_template = lab
    Rollouts.requester = requester
    Rollouts.approvers = [lead, Actor.person(make_user("second", lab.world.team, Role.APPROVER))]
    asked = settings.get_current_profile_name()
    profile = settings.get_profile("nightly" if asked == "nightly" else "rollouts")
    run_state_machine_as_test(
        Rollouts,
        settings=settings(profile, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True),
    )
