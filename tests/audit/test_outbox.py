"""Webhooks: a real receiver gets what is due, signed, whatever fails in between; nobody else is dialled."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest
from django.db import transaction
from rest_framework.test import APIClient
from standardwebhooks import Webhook as Verifier

from apps.access.actors import Actor
from apps.access.models import Team, User
from apps.audit import egress, outbox, services
from apps.audit.models import Outbox, Webhook
from apps.lib.errors import DomainError, Forbidden

pytestmark = pytest.mark.django_db


class Receiver(ThreadingHTTPServer):
    """Answers with the statuses it was given, then 204; keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?x=1"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", self.server.url)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.FARRIER = settings.FARRIER.model_copy(update={"webhook_networks": "127.0.0.0/8"})
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hook(receiver: Receiver, team: Team, team_admin: User, now: datetime) -> tuple[Webhook, str]:
    return services.create_webhook(
        team=team, url=receiver.url, topics=["rollout.done"], actor=Actor.person(team_admin), now=now
    )


def emit(team: Team, now: datetime, topic: str = "rollout.done") -> int:
    return services.emit(topic, {"number": 42}, team, now=now)


def test_a_signed_message_arrives_once(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, now: datetime
) -> None:
    assert emit(team, now) == 1
    assert services.deliver_due(now=now) == 1
    assert services.deliver_due(now=now) == 0
    ((headers, body),) = receiver.got
    message = Verifier(hook[1]).verify(body, headers)
    assert (message["type"], message["data"]) == ("rollout.done", {"number": 42})
    assert Outbox.objects.get().done_at is not None


def test_only_what_was_asked_for_and_only_to_the_team(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, other_team: Team, now: datetime
) -> None:
    assert emit(team, now, "node.joined") == 0
    assert emit(other_team, now) == 0


def test_what_did_not_happen_is_not_told(hook: tuple[Webhook, str], team: Team, now: datetime) -> None:
    with transaction.atomic():
        emit(team, now)
        transaction.set_rollback(True)
    assert not Outbox.objects.exists()


def test_failures_are_tried_again_later_and_later_under_the_same_id(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, now: datetime
) -> None:
    receiver.statuses = [500, 302, 429]
    emit(team, now)
    moments = [now]
    for _ in range(3):
        assert services.deliver_due(now=moments[-1]) == 0
        moments.append(Outbox.objects.get().due_at)
    assert services.deliver_due(now=moments[-1]) == 1
    waits = [round((b - a).total_seconds()) for a, b in pairwise(moments)]
    assert waits == [5, 10, 20]
    assert len(receiver.got) == 4, "a redirect is not followed"
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


def test_after_many_attempts_it_is_parked_until_a_person_sends_it_again(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, team_admin: User, now: datetime
) -> None:
    receiver.statuses = [500] * outbox.MAX_ATTEMPTS
    emit(team, now)
    for _ in range(outbox.MAX_ATTEMPTS):
        services.deliver_due(now=Outbox.objects.get().due_at)
    row = Outbox.objects.get()
    assert row.parked_at is not None
    assert "answered 500" in row.last_error
    assert services.deliver_due(now=now + timedelta(days=1)) == 0
    services.resend(row=row, actor=Actor.person(team_admin), now=now)
    assert services.deliver_due(now=now) == 1


def test_a_receiver_that_is_gone_for_good_is_asked_once(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, now: datetime
) -> None:
    receiver.statuses = [410]
    emit(team, now)
    services.deliver_due(now=now)
    assert Outbox.objects.get().parked_at is not None
    assert services.deliver_due(now=now + timedelta(days=1)) == 0
    assert len(receiver.got) == 1


def test_a_leased_row_is_nobody_else_s_until_the_lease_ends(
    receiver: Receiver, hook: tuple[Webhook, str], team: Team, now: datetime
) -> None:
    emit(team, now)
    dead = outbox._claim(now)  # its worker dies here
    assert dead is not None
    assert services.deliver_due(now=now + timedelta(seconds=59)) == 0
    assert services.deliver_due(now=now + timedelta(seconds=61)) == 1
    assert not outbox._finish(dead, outbox.Outcome(done=False, error="late"), now), "the dead one's word comes too late"
    assert Outbox.objects.get().last_error == ""


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "240.0.0.1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public_are_not_dialled(address: str) -> None:
    assert not egress.may_dial(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1"])
def test_public_addresses_are(address: str) -> None:
    assert egress.may_dial(ipaddress.ip_address(address))


def test_a_name_that_leads_home_is_refused() -> None:
    with pytest.raises(DomainError) as refused:
        egress.post("https://localhost/hook", b"{}", {})
    assert refused.value.code == "forbidden_address"


@pytest.mark.parametrize(
    "url", ["ftp://x/", "file:///etc/passwd", "https://", "https://u:p@host/", "http://h/", "https://h:x/"]
)
def test_addresses_that_can_not_be_meant(url: str, team: Team, team_admin: User, now: datetime) -> None:
    with pytest.raises(DomainError):
        services.create_webhook(team=team, url=url, topics=[], actor=Actor.person(team_admin), now=now)


def test_admins_make_webhooks_and_see_the_secret_once(
    receiver: Receiver, team: Team, team_admin: User, operator: User, now: datetime, api: Callable[..., APIClient]
) -> None:
    with pytest.raises(Forbidden):
        services.create_webhook(team=team, url=receiver.url, topics=[], actor=Actor.person(operator), now=now)
    client = APIClient()
    client.force_login(team_admin)
    made = client.post("/api/v1/webhooks", {"url": receiver.url}, format="json").json()
    assert made["secret"].startswith("whsec_")
    assert made["secret"] not in str(client.get("/api/v1/webhooks").json())
    assert client.delete(f"/api/v1/webhooks/{made['id']}").status_code == 204
    assert not Webhook.objects.exists()


def test_an_address_with_a_secret_in_it_stays_out_of_log_and_row(
    receiver: Receiver,
    hook: tuple[Webhook, str],
    team: Team,
    now: datetime,
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver.statuses = [410]
    emit(team, now)
    services.deliver_due(now=now)
    assert "127.0.0.1 answered 410" in Outbox.objects.get().last_error
    assert "gave up" in caplog.text
    assert "/hook" not in caplog.text + Outbox.objects.get().last_error


def test_an_address_is_its_teams_admins_to_read(
    hook: tuple[Webhook, str],
    api: Callable[..., APIClient],
    team: Team,
    team_admin: User,
    approver: User,
    superuser: User,
) -> None:
    def seen(user: User) -> list[str]:
        return [row["url"] for row in api(user, team).get("/api/v1/webhooks").json()["results"]]

    assert seen(team_admin) == seen(superuser) == [hook[0].url]
    assert seen(approver) == []
    events = api(approver, team).get("/api/v1/audit?verb=webhook.created").json()["results"]
    assert [event["data"]["host"] for event in events] == ["127.0.0.1"]
    assert "/hook" not in str(events)
