"""Alerts over time, in the database: the tick, what people do between, what receivers are told, what is marked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import IntegrityError, connection, transaction

from apps.access.actors import SYSTEM, Actor
from apps.access.models import Role, User
from apps.audit.models import Event, Outbox, Webhook
from apps.audit.transitions import IllegalMove, Stale, move
from apps.fleet.models import Condition, Gpu, GpuHealth, Node, NodePhase
from apps.lib.errors import Conflict, DomainError, Forbidden
from apps.observability import alert_services, alerting, timeseries
from apps.observability.alert_models import Alert, AlertRule, AlertState, Silence
from apps.observability.alert_rules import DEFAULTS, ensure_rules
from apps.observability.timeseries import RequestMinute
from tests.observability.alert_lab import WatchedFleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(watched: WatchedFleet) -> Node:
    return watched.add_node("node-2")


@pytest.fixture
def oncall(operator: User) -> Actor:
    return Actor.person(operator)


@pytest.fixture
def hook(watched: WatchedFleet) -> Webhook:
    return Webhook.objects.create(team=watched.world.team, url="https://hooks.example/in", secret="whsec_eA==")


def told(topic: str = "alert.", *, heartbeat: bool = False) -> list[str]:
    """The topics that were handed to the outbox, oldest first."""
    rows = Outbox.objects.filter(topic__startswith=topic).order_by("created_at", "id")
    return [row.topic for row in rows if heartbeat or row.topic != "alert.heartbeat"]


# ---- the state machine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", AlertState.values)
@pytest.mark.parametrize("to", AlertState.values)
def test_state_by_state(source: str, to: str, watched: WatchedFleet, node: Node, now: datetime) -> None:
    ensure_rules()
    alert = Alert.objects.create(
        team=watched.world.team,
        rule_id="node-down",
        entity_kind="node",
        entity_id=node.pk,
        entity_name=node.name,
        severity="page",
        state=source,
        pending_at=now,
        bad_at=now,
        firing_at=now,
        resolved_at=now if source == "resolved" else None,
        summary="node-2 is away",
    )
    legal = {
        "pending": {"firing", "no_data", "resolved"},
        "firing": {"no_data", "resolved"},
        "no_data": {"pending", "firing", "resolved"},
        "resolved": set(),
    }
    changes = {"resolved_at": now} if to == "resolved" else {}
    if to not in legal[source]:
        with pytest.raises(IllegalMove):
            move(alert, to, actor=SYSTEM, reason="", now=now, changes=changes)
        assert Alert.objects.get().state == source
        return
    move(alert, to, actor=SYSTEM, reason="because", now=now, changes=changes)
    alert.refresh_from_db()
    assert (alert.state, alert.revision) == (to, 1)
    event = Event.objects.get(object_type="observability.alert")
    assert (event.verb, event.from_state, event.to_state) == (f"alert.{to}", source, to)


def test_one_open_alert_an_identity(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node)
    watched.tick()
    alert = watched.alerts()[0]
    alert.pk = uuid4()
    with pytest.raises(IntegrityError), transaction.atomic():
        alert.save(force_insert=True)


# ---- the story: a fan stops, cooling returns ------------------------------------------------------------------------


def test_a_hot_host_is_one_alert_that_fires_and_resolves(
    watched: WatchedFleet, node: Node, hook: Webhook, django_assert_max_num_queries: Any
) -> None:
    watched.heat(node)
    watched.heat(node, metric="memory_temperature_c")
    watched.tick()
    assert {(row.rule_id, row.state) for row in watched.alerts()} == {
        ("gpu-temperature", "pending"),
        ("gpu-memory-temperature", "pending"),
    }
    watched.run(300)
    heat, memory = sorted(watched.alerts(), key=lambda row: row.rule_id, reverse=True)
    assert (heat.state, len(heat.members), heat.gpus, heat.simulated) == ("firing", 8, 8, True)
    assert heat.summary.startswith("node-2: 8 of 8 GPUs run 16 °C above their usual; looks like the host's cooling")
    assert memory.inhibited_by == heat
    watched.run(60)
    assert told() == ["alert.firing"]
    payload = Outbox.objects.get(topic="alert.firing").payload
    assert payload["labels"] == {"rule": "gpu-temperature", "node": "node-2", "zone": "zone-b", "severity": "ticket"}
    assert payload["simulated"] is True
    assert set(Gpu.objects.values_list("health", flat=True)) == {GpuHealth.HOT}

    watched.cool()
    watched.run(150)
    assert {row.state for row in watched.alerts()} == {"resolved"}
    assert set(Gpu.objects.values_list("health", flat=True)) == {GpuHealth.OK}
    watched.run(300)
    assert told() == ["alert.firing", "alert.resolved"]
    with django_assert_max_num_queries(30):
        watched.tick()


def test_what_fires_again_is_a_new_alert(watched: WatchedFleet, node: Node) -> None:
    for _ in range(2):
        watched.heat(node, 5)
        watched.run(360)
        watched.cool()
        watched.run(180)
    assert [row.state for row in watched.alerts()] == ["resolved", "resolved"]


def test_a_blip_fires_nothing(watched: WatchedFleet, node: Node, hook: Webhook) -> None:
    watched.heat(node)
    watched.run(240)
    watched.cool()
    watched.run(600)
    assert [(row.state, row.firing_at) for row in watched.alerts()] == [("resolved", None)]
    assert told() == []


def test_members_come_and_go_without_a_second_alert(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node, 5)
    watched.run(330)
    watched.heat(node, 1, 2, 3, 4)
    watched.tick()
    (alert,) = watched.alerts()
    assert [member["index"] for member in alert.members] == [1, 2, 3, 4, 5]
    assert alert.state == "firing"


def test_missing_data_is_a_state_and_never_resolves(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node)
    watched.run(330)
    watched.unheard = set(node.gpus.values_list("number", flat=True))
    watched.cool()
    watched.tick()
    assert {row.rule_id: row.state for row in watched.alerts()} == {
        "gpu-temperature": "no_data",
        "no-telemetry": "pending",
    }
    watched.tick(86_400)
    watched.run(600)
    states = {row.rule_id: (row.state, row.inhibited_by_id is not None) for row in watched.alerts()}
    assert states == {"gpu-temperature": ("no_data", True), "no-telemetry": ("firing", False)}
    assert set(Gpu.objects.values_list("health", flat=True)) == {GpuHealth.UNKNOWN}
    watched.unheard = set()
    watched.heat(node)
    watched.tick()
    assert {row.rule_id: row.state for row in watched.alerts()} == {
        "gpu-temperature": "firing",
        "no-telemetry": "resolved",
    }


def test_a_detector_that_stopped_resolves_nothing(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node, 5)
    watched.run(330)
    watched.judged_s_ago = 400
    watched.run(600)
    (alert,) = watched.alerts()
    assert alert.state == "no_data"
    watched.judged_s_ago = 90
    watched.tick()
    alert.refresh_from_db()
    assert alert.state == "firing"


def test_a_hot_gpu_that_falls_silent_has_not_cooled(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node, 5)
    watched.run(330)
    watched.unheard = {node.gpus.get(index=5).number}
    watched.run(600)
    assert {row.rule_id: row.state for row in watched.alerts()} == {"gpu-temperature": "no_data"}


def test_a_node_that_is_away_speaks_for_all_its_alerts(watched: WatchedFleet, node: Node, hook: Webhook) -> None:
    watched.report(node, "GpuXid", "GPU 3: Xid 79")
    watched.run(10, step=5)
    assert {row.rule_id: (row.state, row.severity) for row in watched.alerts()} == {"gpu-xid": ("firing", "page")}
    watched.run(180, polls=False)
    watched.run(60, step=5, polls=False)
    rows = {row.rule_id: row for row in watched.alerts()}
    assert (rows["node-down"].state, rows["gpu-xid"].state) == ("firing", "no_data")
    assert rows["gpu-xid"].inhibited_by == rows["node-down"]
    watched.run(600, polls=False)
    assert told() == ["alert.firing", "alert.firing"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("GPU 3: Xid 79", {"gpu-xid": "page"}),
        ("GPU 3: Xid 31", {"gpu-xid": "ticket"}),
        ("GPU 3: Xid 63", {}),  # recorded only
        ("GPU 3 (Xid 31), GPU 4 (Xid 48): an error.", {"gpu-xid": "page"}),
    ],
)
def test_xid_severity(message: str, expected: dict[str, str], watched: WatchedFleet, node: Node) -> None:
    watched.report(node, "GpuXid", message)
    watched.tick()
    assert {row.rule_id: row.severity for row in watched.alerts()} == expected
    assert Gpu.objects.get(node=node, index=3).health == GpuHealth.XID


def test_small_and_cold_excesses_are_no_alert(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node, 1, excess=2.9)
    watched.heat(node, 2, excess=-20)
    watched.heat(node, 3, excess=20, metric="power_w")
    watched.heat(node, 4, excess=20, metric="utilization_ratio")
    watched.tick()
    assert watched.alerts() == []


def test_a_node_that_left_takes_its_alerts_with_it(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node)
    watched.run(330)
    Node.objects.update(phase=NodePhase.BANNED)
    watched.tick()
    (alert,) = watched.alerts()
    assert alert.state == "resolved"
    assert Event.objects.filter(verb="alert.resolved").get().reason == "What it was about is no longer watched."


def test_slow_models(watched: WatchedFleet, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.world.publish("digits")

    def answers(slow: int, requests: int = 100) -> None:
        row = RequestMinute(watched.now, node.pk, node.team_id, "digits", 1, requests, 0, slow, 1_000)
        monkeypatch.setattr(timeseries, "request_minutes", lambda *asked: [row])

    answers(slow=5)
    watched.tick()
    assert watched.alerts() == []
    answers(slow=9)
    watched.run(90)
    (alert,) = watched.alerts()
    assert (alert.state, alert.node_id) == ("firing", node.pk)
    assert alert.summary == "digits answers 91 % of its requests within 500 ms; 95 % are promised"
    answers(slow=0, requests=3)  # too few to say anything
    watched.run(600)
    alert.refresh_from_db()
    assert alert.state == "no_data"


def test_heartbeat_beats_every_interval(watched: WatchedFleet, hook: Webhook) -> None:
    watched.run(910)
    beats = told("alert.heartbeat", heartbeat=True)
    assert len(beats) == 3
    assert Alert.objects.get(rule="heartbeat", team=watched.world.team).state == "firing"


def test_after_an_outage_of_ours_nodes_are_heard_before_anybody_is_paged(
    watched: WatchedFleet, node: Node, hook: Webhook
) -> None:
    watched.tick(polls=True)
    watched.tick(3_600, polls=False)  # we were away, and so it seems that every node was
    assert [row.state for row in watched.alerts(rule="node-down")] == ["pending"]
    watched.run(60, step=10)
    assert [row.firing_at for row in watched.alerts(rule="node-down")] == [None]
    assert told() == []


def test_old_alerts_are_forgotten_and_events_stay(watched: WatchedFleet, node: Node) -> None:
    watched.heat(node, 5)
    watched.run(360)
    watched.cool()
    watched.run(180)
    watched.heat(node, 5)
    watched.run(60)
    watched.cool()
    watched.run(60)
    events = Event.objects.count()
    assert alerting.forget(now=watched.now + timedelta(hours=23)) == 0
    assert alerting.forget(now=watched.now + timedelta(hours=25)) == 1  # the blip
    assert alerting.forget(now=watched.now + timedelta(days=401)) == 1
    assert watched.alerts() == []
    assert Event.objects.count() == events


def test_a_node_without_gpus_is_not_asked_for_samples(watched: WatchedFleet) -> None:
    watched.add_node("node-9", gpus=0)
    watched.run(120)
    assert watched.alerts() == []


def test_rules_that_an_installation_edited_stay(watched: WatchedFleet, node: Node) -> None:
    ensure_rules()
    AlertRule.objects.filter(slug="gpu-temperature").update(for_s=10, severity="page")
    AlertRule.objects.filter(slug="gpu-power").delete()
    watched.heat(node, 1)
    watched.run(20, step=5)
    (alert,) = watched.alerts()
    assert (alert.state, alert.severity) == ("firing", "page")
    assert AlertRule.objects.count() == len(DEFAULTS)


def test_one_evaluator_at_a_time(watched: WatchedFleet, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting, "_lock", lambda: False)
    watched.heat(node)
    assert watched.tick() == 0
    assert Alert.objects.count() == 0


# ---- people ---------------------------------------------------------------------------------------------------------


def fired(watched: WatchedFleet, node: Node) -> Alert:
    watched.heat(node)
    watched.run(360)
    return watched.alerts(state="firing")[0]


def test_acknowledging_is_idempotent_and_stops_repeats(
    watched: WatchedFleet, node: Node, hook: Webhook, oncall: Actor, make_user: Callable[..., User]
) -> None:
    alert = fired(watched, node)
    first = alert_services.acknowledge_alert(alert, actor=oncall, now=watched.now, note="on it", expected_revision=1)
    other = Actor.person(make_user("second", watched.world.team, Role.OPERATOR))
    again = alert_services.acknowledge_alert(alert, actor=other, now=watched.now)
    assert again.acknowledged_by == first.acknowledged_by == oncall.user
    assert again.owner == oncall.user
    assert Event.objects.filter(verb="alert.acknowledged").count() == 1
    assert told() == ["alert.firing", "alert.acknowledged"]
    watched.tick(20_000)
    assert told() == ["alert.firing", "alert.acknowledged"]
    alert_services.unacknowledge_alert(alert, actor=oncall, now=watched.now, note="going home")
    watched.tick()
    assert told() == ["alert.firing", "alert.acknowledged", "alert.firing"]


def test_a_stale_page_acknowledges_nothing(watched: WatchedFleet, node: Node, oncall: Actor) -> None:
    alert = fired(watched, node)
    with pytest.raises(Stale):
        alert_services.acknowledge_alert(alert, actor=oncall, now=watched.now, expected_revision=0)
    watched.cool()
    watched.run(180)
    with pytest.raises(Conflict, match="has resolved"):
        alert_services.acknowledge_alert(alert, actor=oncall, now=watched.now)
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_at) == ("resolved", None)


def test_ownership_passes_on(watched: WatchedFleet, node: Node, oncall: Actor, make_user: Callable[..., User]) -> None:
    alert = fired(watched, node)
    alert_services.acknowledge_alert(alert, actor=oncall, now=watched.now)
    other = make_user("second", watched.world.team, Role.OPERATOR)
    alert_services.own_alert(alert, actor=Actor.person(other), now=watched.now)
    alert.refresh_from_db()
    assert (alert.owner, alert.acknowledged_by) == (other, oncall.user)


def test_roles(watched: WatchedFleet, node: Node, viewer: User, outsider: User) -> None:
    alert = fired(watched, node)
    for user in (viewer, outsider):
        with pytest.raises(Forbidden):
            alert_services.acknowledge_alert(alert, actor=Actor.person(user), now=watched.now)
        with pytest.raises(Forbidden):
            alert_services.create_silence(
                team=watched.world.team,
                matchers={"node": "node-2"},
                reason="no",
                expires_at=watched.now + timedelta(hours=1),
                actor=Actor.person(user),
                now=watched.now,
            )


def test_nobody_acknowledges_the_heartbeat(watched: WatchedFleet, oncall: Actor) -> None:
    watched.run(10, step=5)
    with pytest.raises(Conflict, match="meant to fire"):
        alert_services.acknowledge_alert(Alert.objects.get(), actor=oncall, now=watched.now)


def silence(watched: WatchedFleet, oncall: Actor, minutes: float = 10, **matchers: str) -> Silence:
    return alert_services.create_silence(
        team=watched.world.team,
        matchers=matchers or {"node": "node-2"},
        reason="fan is being changed",
        expires_at=watched.now + timedelta(minutes=minutes),
        actor=oncall,
        now=watched.now,
    )


def test_a_silence_mutes_and_its_end_tells_anew(
    watched: WatchedFleet, node: Node, hook: Webhook, oncall: Actor
) -> None:
    alert = fired(watched, node)
    lying = silence(watched, oncall, minutes=20, node="node-2", rule="gpu-temperature")
    alert.refresh_from_db()
    assert alert.silenced_by == lying
    watched.run(1_140)
    assert told() == ["alert.firing"]
    watched.run(120)
    alert.refresh_from_db()
    assert (alert.silenced_by, alert.state) == (None, "firing")
    assert told() == ["alert.firing", "alert.firing"]


def test_a_silence_from_before_tells_nothing_until_it_is_ended(
    watched: WatchedFleet, node: Node, hook: Webhook, oncall: Actor
) -> None:
    lying = silence(watched, oncall, minutes=600)
    alert = fired(watched, node)
    assert alert.silenced_by == lying
    assert told() == []
    alert_services.end_silence(lying, actor=oncall, reason="the fan is new", now=watched.now)
    watched.tick()
    assert told() == ["alert.firing"]
    with pytest.raises(Conflict):
        alert_services.end_silence(lying, actor=oncall, reason="again", now=watched.now)


def test_a_silence_that_does_not_match_mutes_nothing(
    watched: WatchedFleet, node: Node, hook: Webhook, oncall: Actor
) -> None:
    silence(watched, oncall, minutes=600, node="node-2", severity="page")
    silence(watched, oncall, minutes=600, zone="zone-c")
    assert fired(watched, node).silenced_by is None
    assert told() == ["alert.firing"]


@pytest.mark.parametrize(
    ("matchers", "hours", "reason", "code"),
    [
        ({}, 1.0, "why", "bad_matchers"),
        ({"colour": "red"}, 1.0, "why", "bad_matchers"),
        ({"node": ""}, 1.0, "why", "bad_matchers"),
        ({"node": "node-2"}, 0.0, "why", "bad_expiry"),
        ({"node": "node-2"}, 24 * 31.0, "why", "bad_expiry"),
        ({"node": "node-2"}, 1.0, "  ", "reason_missing"),
    ],
)
def test_silences_that_are_refused(
    matchers: dict[str, str], hours: float, reason: str, code: str, watched: WatchedFleet, oncall: Actor
) -> None:
    with pytest.raises(DomainError) as refused:
        alert_services.create_silence(
            team=watched.world.team,
            matchers=matchers,
            reason=reason,
            expires_at=watched.now + timedelta(hours=hours),
            actor=oncall,
            now=watched.now,
        )
    assert refused.value.code == code
    assert Silence.objects.count() == 0


def test_an_acknowledgement_between_reading_and_writing_loses_nothing(
    watched: WatchedFleet, node: Node, oncall: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race that reopened resolved groups elsewhere: a person acts while the tick has decided to resolve."""
    alert = fired(watched, node)
    watched.cool()
    watched.run(90)
    real = alerting.plan

    def plan_then_acknowledge(*args: Any) -> Any:
        actions = real(*args)
        alert_services.acknowledge_alert(alert, actor=oncall, now=watched.now)
        return actions

    monkeypatch.setattr(alerting, "plan", plan_then_acknowledge)
    watched.tick(30)
    alert.refresh_from_db()
    assert (alert.state, alert.acknowledged_by) == ("resolved", oncall.user)


def test_health_follows_what_is_reported(watched: WatchedFleet, node: Node) -> None:
    watched.tick()
    assert set(Gpu.objects.values_list("health", flat=True)) == {GpuHealth.OK}
    watched.report(node, "GpuThrottled", "GPUs 1 and 2 are slowed down")
    watched.report(node, "GpuLost", "GPU 2 is lost")
    watched.tick()
    health = dict(Gpu.objects.values_list("index", "health"))
    assert health == dict.fromkeys(range(8), "ok") | {1: "throttled", 2: "lost"}
    Condition.objects.all().update(status="false")
    watched.tick()
    assert set(Gpu.objects.values_list("health", flat=True)) == {GpuHealth.OK}


def test_queries_do_not_grow_with_the_fleet(watched: WatchedFleet, node: Node) -> None:
    watched.run(60)

    def queries() -> int:
        connection.force_debug_cursor = True
        before = len(connection.queries_log)
        watched.tick()
        connection.force_debug_cursor = False
        return len(connection.queries_log) - before

    few = queries()
    for number in range(3, 8):
        watched.add_node(f"node-{number}")
    watched.run(60)
    assert queries() == few
