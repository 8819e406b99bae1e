"""Rules are edited in the admin pages, and every edit is in the audit."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import User
from apps.audit.models import Event
from apps.observability.alert_models import AlertRule
from apps.observability.alert_rules import ensure_rules

pytestmark = pytest.mark.django_db


def test_editing_a_rule_is_recorded(client: Client, superuser: User) -> None:
    ensure_rules()
    rule = AlertRule.objects.get(slug="gpu-temperature")
    client.force_login(superuser)
    form = {
        "severity": "page",
        "for_s": "60",
        "keep_firing_s": str(rule.keep_firing_s),
        "enabled": "on",
        "description": rule.description,
        "advice": rule.advice,
        "runbook_url": "https://runbooks.example/heat",
        "slug": "another",
    }
    done = client.post("/admin/observability/alertrule/gpu-temperature/change/", form)
    assert done.status_code == 302
    rule.refresh_from_db()
    assert (rule.slug, rule.severity, rule.for_s) == ("gpu-temperature", "page", 60)
    event = Event.objects.get(verb="alert_rule.changed")
    assert (event.actor, event.object_label) == (superuser, "gpu-temperature")
    assert event.data == {"severity": "page", "for_s": 60, "runbook_url": "https://runbooks.example/heat"}


@pytest.mark.parametrize("page", ["alertrule", "alert", "silence", "alertnotice"])
def test_lists_open_and_nothing_is_added_or_deleted_there(page: str, client: Client, superuser: User) -> None:
    ensure_rules()
    client.force_login(superuser)
    assert client.get(f"/admin/observability/{page}/").status_code == 200
    assert client.get(f"/admin/observability/{page}/add/").status_code == 403
    assert client.post("/admin/observability/alertrule/gpu-power/delete/", {"post": "yes"}).status_code == 403
