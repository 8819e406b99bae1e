"""What a superuser does in the admin pages is told to the audit log."""

from __future__ import annotations

import pytest
from django.test import Client

from apps.access.models import User
from apps.audit.models import Event

pytestmark = pytest.mark.django_db
NEW = "a staple of the correct battery"


def test_setting_anothers_password_is_recorded(client: Client, superuser: User, approver: User) -> None:
    """Who knows an approver's password can decide as them, so the log must say who set it."""
    client.force_login(superuser)
    path = f"/admin/access/user/{approver.pk}/password/"
    refused = client.post(path, {"password1": NEW, "password2": "not the same", "usable_password": "true"})
    assert refused.status_code == 200
    assert not Event.objects.filter(verb="user.changed").exists()
    done = client.post(path, {"password1": NEW, "password2": NEW, "usable_password": "true"})
    assert done.status_code == 302
    approver.refresh_from_db()
    assert approver.check_password(NEW)
    event = Event.objects.get(verb="user.changed")
    assert (event.actor, event.object_id, event.data["fields"]) == (superuser, str(approver.pk), ["password"])
