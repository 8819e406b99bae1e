"""`/metrics`: a token of its own, the figures of the database, eight queries at most, read once in five seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from apps.access.models import Team
from apps.audit.models import Outbox, Webhook
from apps.fleet.models import Node
from apps.observability.models import Alert, AlertRule, TelemetryCursor
from controlplane import metrics
from tests.fleet import builders
from tests.fleet.conftest import farrier, world

__all__ = ["farrier", "world"]
pytestmark = pytest.mark.django_db
TOKEN = "scrape-me"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_kept", None)


@pytest.fixture
def guarded(settings: Any) -> None:
    settings.FARRIER = settings.FARRIER.model_copy(update={"metrics_token": TOKEN})


def scrape(client: Client) -> dict[tuple[str, ...], float]:
    """The samples by (name, label values…), in the alphabetical order of the labels."""
    answer = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


def test_without_a_token_there_is_no_page(client: Client) -> None:
    answer = client.get("/metrics", headers={"Authorization": "Bearer "})
    assert (answer.status_code, answer.json()["code"]) == (404, "no_metrics")


@pytest.mark.parametrize("sent", ["", "Bearer wrong", "Basic c2NyYXBlLW1l", TOKEN, f"bearer {TOKEN}"])
def test_a_wrong_token_is_refused(sent: str, guarded: None, client: Client) -> None:
    answer = client.get("/metrics", headers={"Authorization": sent})
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_token")


def test_an_empty_installation_has_zeros(guarded: None, client: Client) -> None:
    found = scrape(client)
    assert found["farrier_alerts", "page", "firing"] == 0
    assert found["farrier_rollouts", "paused"] == 0
    assert found["farrier_nodes", "active"] == 0
    assert found["farrier_outbox_due_age_seconds",] == 0


def test_figures(guarded: None, client: Client, world: builders.World, now: datetime) -> None:
    node, _ = builders.enrol(world, "node-1", now)
    Node.objects.update(phase="active", last_seen_at=now - timedelta(seconds=90), desired_generation=3)
    rule = AlertRule.objects.create(slug="node-down", kind="node_down", severity="page", description="", advice="")
    Alert.objects.create(
        team=world.team, rule=rule, entity_kind="node", entity_id=node.pk, entity_name=node.name, severity="page",
        state="firing", pending_at=now, firing_at=now, bad_at=now, summary="away",
    )  # fmt: skip
    hook = Webhook.objects.create(team=world.team, url="https://hooks.example/", secret="whsec_eA==")
    for parked in (None, now):
        Outbox.objects.create(
            kind="webhook", topic="a.b", payload={}, webhook=hook, due_at=now - timedelta(seconds=40), parked_at=parked
        )
    TelemetryCursor.objects.create(node=node, boot_id=node.pk, seq=7, dropped_rows=2)
    found = scrape(client)
    assert found["farrier_nodes", "active"] == 1
    assert found["farrier_nodes_uncompiled",] == 1
    assert found["farrier_node_last_poll_age_seconds",] >= 90
    assert found["farrier_alerts", "page", "firing"] == found["farrier_alerts_unowned",] == 1
    assert found["farrier_outbox_waiting",] == found["farrier_outbox_parked",] == 1
    assert found["farrier_outbox_due_age_seconds",] >= 40
    assert (found["farrier_telemetry_batches",], found["farrier_telemetry_dropped_rows",]) == (7, 2)


def test_few_queries_and_none_within_five_seconds(guarded: None, client: Client, team: Team) -> None:
    with CaptureQueriesContext(connection) as first:
        scrape(client)
    with CaptureQueriesContext(connection) as second:
        scrape(client)
    assert len(first) <= 8
    assert len(second) == 0
