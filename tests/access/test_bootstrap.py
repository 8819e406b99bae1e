"""A new installation: everything is there after one run, and a second one changes nothing."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from rest_framework.test import APIClient

from aifb.signing import keyid, load_private_key
from apps.access.models import ApiToken, User
from apps.audit import keys as audit_keys
from apps.audit.models import Event
from apps.fleet.models import JoinToken, Pool
from apps.models.models import TrustRoot
from apps.models.trust import current_root
from apps.rollouts.models import Strategy

pytestmark = pytest.mark.django_db
PRIVATE = ["secrets.json", "nodes/node-1/join-token", "keys/audit/audit.pem"] + [
    f"keys/{role}/{role}.pem" for role in ("root", "release", "director")
]


@pytest.fixture
def installed(home: Path) -> Path:
    call_command("bootstrap", stdout=StringIO())
    return home


def test_everybody_can_sign_in_with_what_the_secrets_file_says(installed: Path) -> None:
    passwords = json.loads((installed / "secrets.json").read_text())["users"]
    assert set(passwords) == {"requester", "lead", "oncall", "admin"}
    for name, password in passwords.items():
        assert Client().login(username=name, password=password)
    roles = dict(User.objects.values_list("username", "memberships__role"))
    assert roles == {"requester": "operator", "lead": "approver", "oncall": "operator", "admin": "admin"}
    assert list(User.objects.filter(is_superuser=True).values_list("username", flat=True)) == ["admin"]


def test_the_ci_token_registers_and_starts_but_does_not_approve(installed: Path) -> None:
    secret = json.loads((installed / "secrets.json").read_text())["ci_token"]
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Token {secret}")
    me = client.get("/api/v1/me").json()
    assert me["username"] == "requester"
    assert set(me["scopes"]) == {"read", "registry:write", "rollouts:write", "feedback:write"}
    assert client.post("/api/v1/models/digits/versions:reserve", {}, format="json").status_code == 201


def test_secrets_are_their_owner_s_alone(installed: Path) -> None:
    for name in PRIVATE:
        assert (installed / name).stat().st_mode & 0o777 == 0o600, name


def test_the_trust_root_lists_the_keys_on_disk(installed: Path) -> None:
    root = current_root()
    assert root.version == 1
    for role in ("root", "release", "director"):
        key = load_private_key((installed / "keys" / role / f"{role}.pem").read_bytes())
        assert root.roles[role].keyids == {keyid(key.public_key())}
    audit_keys.signing_key()


def test_pool_strategies_and_join_tokens(installed: Path) -> None:
    assert Pool.objects.get().auto_accept
    assert Strategy.objects.filter(team__slug="default").exists()
    assert sorted(JoinToken.objects.values_list("node_name", flat=True)) == ["node-1", "node-2", "node-3"]


def test_a_second_run_changes_nothing_but_the_join_tokens(installed: Path) -> None:
    stable = [name for name in PRIVATE if "join-token" not in name]
    before = {name: (installed / name).read_bytes() for name in stable}
    events = set(Event.objects.exclude(verb="join_token.created").values_list("pk", flat=True))
    call_command("bootstrap", stdout=StringIO())
    assert {name: (installed / name).read_bytes() for name in stable} == before
    assert set(Event.objects.exclude(verb="join_token.created").values_list("pk", flat=True)) == events
    assert (TrustRoot.objects.count(), ApiToken.objects.count(), User.objects.count()) == (1, 1, 4)


def test_a_changed_password_is_left_alone(installed: Path) -> None:
    lead = User.objects.get(username="lead")
    lead.set_password("one of her own")
    lead.save()
    call_command("bootstrap", stdout=StringIO())
    assert Client().login(username="lead", password="one of her own")
