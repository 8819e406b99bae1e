"""Anything in any order: faults come and go, data stops, time jumps, people act on what they saw a while ago.

Whatever happens: one open alert an identity; nothing fires before its time or without having been seen; missing data
never resolves; what has resolved stays; an acknowledgement is never lost to the tick; receivers are never told that
something began twice without a reason, and are told the end of all that they were told the beginning of.
"""

from __future__ import annotations

import copy
from collections import Counter
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from apps.access.actors import Actor
from apps.access.models import User
from apps.audit.models import Event, Outbox, Webhook
from apps.fleet.models import Condition, Node, NodePhase
from apps.lib.errors import DomainError
from apps.observability import alert_services, alerting
from apps.observability.alert_models import Alert, Silence
from apps.observability.alert_rules import RANK
from tests.observability.alert_lab import FOR_S, WatchedFleet

settings.register_profile("alerts", max_examples=12, stateful_step_count=25, phases=[HPhase.explicit, HPhase.generate])
settings.register_profile("alerts-nightly", max_examples=500, stateful_step_count=80)
NAMES = ("node-1", "node-2")


class Alerts(RuleBasedStateMachine):
    """`template` and `person` are made once; every run works on a copy, in a savepoint that is rolled back."""

    template: ClassVar[WatchedFleet]
    person: ClassVar[Actor]

    def __init__(self) -> None:
        super().__init__()
        self.savepoint = transaction.savepoint()
        self.fleet = copy.copy(self.template)
        self.fleet.findings, self.fleet.unheard = {}, set()
        self.patch = pytest.MonkeyPatch()
        self.fleet.install(self.patch)
        self.polls = True
        self.resolved: dict[UUID, Any] = {}
        self.acknowledged: set[UUID] = set()
        self.looked_at: dict[UUID, int] = {}  # a page that somebody has open

    def teardown(self) -> None:
        try:
            self._all_clears()
        finally:
            self.patch.undo()
            transaction.savepoint_rollback(self.savepoint)

    # ---- what may happen --------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), gpus=st.sets(st.integers(0, 7), min_size=1), metric=st.integers(0, 1))
    def gpus_are_hot(self, which: int, gpus: set[int], metric: int) -> None:
        self.fleet.heat(self._node(which), *gpus, metric=("temperature_c", "memory_temperature_c")[metric])

    @rule()
    def it_cools_down(self) -> None:
        self.fleet.cool()

    @rule(which=st.integers(0, 1), code=st.sampled_from([79, 31, 63]))
    def an_xid_is_reported(self, which: int, code: int) -> None:
        self.fleet.report(self._node(which), "GpuXid", f"GPU 3: Xid {code}")

    @rule()
    def faults_are_mended(self) -> None:
        Condition.objects.all().delete()

    @rule(which=st.integers(0, 1))
    def samples_stop(self, which: int) -> None:
        self.fleet.unheard |= set(self._node(which).gpus.values_list("number", flat=True))

    @rule()
    def samples_come_back(self) -> None:
        self.fleet.unheard = set()

    @rule(polls=st.booleans())
    def nodes_poll_or_do_not(self, polls: bool) -> None:
        self.polls = polls

    @rule(which=st.integers(0, 1), watched=st.booleans())
    def a_node_leaves_or_returns(self, which: int, watched: bool) -> None:
        phase = NodePhase.ACTIVE if watched else NodePhase.QUARANTINED
        Node.objects.filter(pk=self._node(which).pk).update(phase=phase)

    @rule(seconds=st.sampled_from([1, 5, 30, 60, 150]), ticks=st.integers(1, 4))
    def time_passes(self, seconds: int, ticks: int) -> None:
        for _ in range(ticks):
            self.fleet.tick(seconds, polls=self.polls)

    @rule(hours=st.sampled_from([0.1, 1, 5, 30]))
    def time_jumps(self, hours: float) -> None:
        self.fleet.now += timedelta(hours=hours)
        self.fleet.tick(1, polls=self.polls)

    @rule(seconds=st.integers(-90, 0))
    def a_tick_comes_late(self, seconds: int) -> None:
        alerting.evaluate(self.fleet.now + timedelta(seconds=seconds))

    @rule()
    def somebody_opens_the_inbox(self) -> None:
        self.looked_at = dict(self._real().values_list("pk", "revision"))

    @rule(undo=st.booleans())
    def somebody_acts_on_what_they_saw(self, undo: bool) -> None:
        command = alert_services.unacknowledge_alert if undo else alert_services.acknowledge_alert
        for pk, revision in self.looked_at.items():
            alert = Alert.objects.get(pk=pk)
            fresh = alert.revision == revision and alert.state != "resolved"
            try:
                command(alert, actor=self.person, now=self.fleet.now, expected_revision=revision)
            except DomainError:
                assert not fresh
                continue
            assert fresh
            (self.acknowledged.discard if undo else self.acknowledged.add)(pk)

    @rule(which=st.integers(0, 1), minutes=st.sampled_from([1, 20, 600]))
    def somebody_silences(self, which: int, minutes: int) -> None:
        alert_services.create_silence(
            team=self.fleet.world.team,
            matchers={"node": NAMES[which]},
            reason="by machine",
            expires_at=self.fleet.now + timedelta(minutes=minutes),
            actor=self.person,
            now=self.fleet.now,
        )

    @rule()
    def somebody_ends_the_silences(self) -> None:
        for silence in Silence.objects.filter(ended_at=None, expires_at__gt=self.fleet.now):
            alert_services.end_silence(silence, actor=self.person, reason="by machine", now=self.fleet.now)

    # ---- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def one_open_alert_an_identity(self) -> None:
        is_open = Counter(Alert.objects.exclude(state="resolved").values_list("rule", "entity_id"))
        assert all(count == 1 for count in is_open.values()), is_open

    @invariant()
    def nothing_fires_before_its_time(self) -> None:
        for alert in self._real().filter(firing_at__isnull=False, rule__for_s__isnull=True):
            assert alert.firing_at is not None
            assert alert.firing_at - alert.pending_at >= timedelta(seconds=FOR_S)

    @invariant()
    def what_has_resolved_stays(self) -> None:
        for pk, revision in self.resolved.items():
            assert Alert.objects.filter(pk=pk, revision=revision, state="resolved").exists()
        self.resolved = dict(self._real().filter(state="resolved").values_list("pk", "revision"))

    @invariant()
    def missing_data_resolves_nothing(self) -> None:
        """From no data an alert goes back, or ends because data came or the node left: it says which."""
        for event in Event.objects.filter(verb="alert.resolved", from_state="no_data"):
            assert event.reason in (
                "It has cleared.",
                "Its data came back; it no longer holds.",
                "What it was about is no longer watched.",
            )

    @invariant()
    def no_acknowledgement_is_lost(self) -> None:
        kept = set(Alert.objects.filter(acknowledged_at__isnull=False).values_list("pk", flat=True))
        assert self.acknowledged == kept

    @invariant()
    def the_greater_alert_speaks(self) -> None:
        for alert in self._real().exclude(state="resolved").filter(inhibited_by__isnull=False):
            assert alert.inhibited_by is not None
            assert RANK[alert.inhibited_by.rule_id] > RANK[alert.rule_id]
            assert alert.inhibited_by.node_id == alert.node_id

    @invariant()
    def beginnings_and_ends_alternate(self) -> None:
        """Of one identity: no end is told twice, and none without a beginning."""
        last: dict[str, str] = {}
        for row in Outbox.objects.filter(topic__in=["alert.firing", "alert.resolved", "alert.no_data"]).order_by("id"):
            key = row.payload["key"]
            if row.topic == "alert.resolved":
                assert last.get(key) in ("alert.firing", "alert.no_data"), key
            last[key] = row.topic

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _node(self, which: int) -> Node:
        return Node.objects.get(name=NAMES[which])

    def _real(self) -> Any:
        return Alert.objects.exclude(rule="heartbeat")

    def _all_clears(self) -> None:
        """Mend everything: every alert must resolve, and whoever knows of one must hear that it is over."""
        self.fleet.cool()
        self.fleet.unheard = set()
        Condition.objects.all().delete()
        Node.objects.update(phase=NodePhase.ACTIVE)
        self.fleet.now += timedelta(hours=1)
        for _ in range(4):
            self.fleet.tick(700)
        assert not self._real().exclude(state="resolved").exists()
        last = {
            row.payload["key"]: row.topic
            for row in Outbox.objects.filter(topic__in=["alert.firing", "alert.resolved", "alert.no_data"]).order_by(
                "id"
            )
        }
        assert set(last.values()) <= {"alert.resolved"}, last


@pytest.mark.timeout(900)
@pytest.mark.django_db
def test_whatever_happens_the_rules_hold(watched: WatchedFleet, operator: User) -> None:
    for name in NAMES:
        watched.add_node(name)
    Webhook.objects.create(team=watched.world.team, url="https://hooks.example/in", secret="whsec_eA==")
    Alerts.template, Alerts.person = watched, Actor.person(operator)
    asked = settings.get_current_profile_name()
    profile = settings.get_profile("alerts-nightly" if asked == "nightly" else "alerts")
    run_state_machine_as_test(
        Alerts,
        settings=settings(profile, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True),
    )
